"""The page for people, in a real browser against a real daemon at work.

With TOPKD_SCREENSHOTS=FOLDER it also leaves page-light.png, page-dark.png and page-phone.png there.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from browser import Browser
from web import TOPKCTL, WebTest, until

SCREENSHOTS = os.environ.get("TOPKD_SCREENSHOTS")
SECONDS = 50 if SCREENSHOTS else 4  # of load before the pictures

# The contrast of an element's text to what is behind it, as WCAG 2 counts.
CONTRAST = """(selector) => {
  const parts = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map((v) => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const node = document.querySelector(selector);
  let back = node;
  while (back && parts(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
  const style = getComputedStyle(node);
  const ink = node instanceof SVGElement ? style.fill : style.color;
  const a = light(ink), b = light(getComputedStyle(back || document.body).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


class Page(WebTest):
    settings = (
        "buckets: [{rows: 64, width: 32768, k: 512}]\n"
        "worker: {heartbeat_ms: 100, canary_interval_ms: 200, hang_ms: 60000}\n"
    )
    http_settings = {"ready_ms": 1500}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser(cls.addClassCleanup)

    def setUp(self):
        super().setUp()
        self.browser.open("about:blank")  # the page of the test before has ended with its daemon
        until(lambda: self.browser.value("location.href") == "about:blank", "an empty page")
        self.browser.problems.clear()
        self.browser.size(1280, 900)

    def load(self, *options):
        command = [TOPKCTL, "bench", *self.url, "--duration", "600s", *map(str, options)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            process.send_signal(signal.SIGINT)
            process.wait(30)

        self.addCleanup(end)

    def open(self):
        self.browser.open(f"http://127.0.0.1:{self.port}/")
        self.wait("Number(document.body && document.body.dataset.samples) >= 2", "two samples")

    def wait(self, script, what, seconds=60):
        return until(lambda: self.browser.value(script), f"{what} ({script})", seconds)

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def picture(self, name, width, height, scale=1, mobile=False):
        self.browser.size(width, height, scale, mobile)
        time.sleep(0.3)
        tall = self.browser.value("document.documentElement.scrollHeight")
        self.browser.size(width, max(tall, height if SCREENSHOTS is None else 0), scale, mobile)
        time.sleep(0.3)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(SCREENSHOTS or folder, name)
            self.browser.screenshot(path, whole=False)
            with open(path, "rb") as file:
                return file.read()

    def test_it_shows_what_the_daemon_does(self):
        self.load("--clients", 2, "--shape", "8x24576x512,64x4096x64,4x16384x1024")
        self.load("--clients", 1, "--shape", "16x16384x256", "--scores", "ties", "--order", "value")
        self.open()
        self.wait("document.body.dataset.samples >= %d" % SECONDS, "some history", 60 + 2 * SECONDS)
        self.wait("document.getElementById('state').textContent === 'ready'", "ready")
        self.assertEqual(self.browser.value("document.title"), "topkd: ready")
        # Both loads are at work; each selection has several rows, which are counted a moment later.
        self.wait("document.querySelector('#tile-sessions').textContent === '3'", "three sessions")
        self.wait("document.querySelector('#buckets tbody').textContent.includes('by value')", "the second")
        self.wait("((s) => s && s.rate > 0 && sum(s.routes) > s.rate)(samples.at(-1))", "rates")

        # What stands there is what the daemon says.
        self.assertEqual(self.text(".device h3"), self.status()["devices"][0]["name"])
        shown = "document.querySelector('#tile-rate').textContent"
        self.wait(f"((s) => s && count(s.rate) === {shown})(samples.at(-1))", "the rate")
        self.assertRegex(self.text("#tile-p50"), r"^\d[\d.]* (µs|ms)$")
        self.assertEqual(self.text("#tile-failed"), "0")

        def buckets_agree():
            cells = self.browser.value(
                "[...document.querySelectorAll('#buckets tbody tr')].map((r) => r.cells[0].textContent)"
            )
            buckets = self.status()["devices"][0]["figures"]["buckets"]
            return sorted(cells) == sorted(f"{b['rows']} × {b['width']} × {b['k']}" for b in buckets)

        until(buckets_agree, "the daemon's buckets on the page")
        self.assertEqual(self.browser.value("document.querySelectorAll('#sessions tbody tr').length"), 3)
        self.assertIn("configured", self.text("#buckets tbody"))

        # The charts have lines, a text for those who do not see them, and values in their legends.
        for chart in ("requests", "latency", "routes"):
            d = self.browser.value(f"document.querySelector('#chart-{chart} path').getAttribute('d')")
            self.assertGreater(d.count("L"), 1, chart)
            self.assertNotIn("NaN", d)
            label = f"document.querySelector('#chart-{chart} svg').getAttribute('aria-label')"
            self.assertRegex(self.browser.value(label), r": \w.* \d")

        # Dark and light are different pictures, and both can be read.
        pictures = {}
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for selector in ("h1", "#about", "#state", "#tiles dt", "#tiles dd", ".legend b", "td", "th",
                             ".device dt", ".device .id", "footer a", "footer p", ".plot text"):
                ratio = self.browser.value(f"({CONTRAST})({json.dumps(selector)})")
                self.assertGreaterEqual(ratio, 4.5, f"{selector} in {scheme}")
            pictures[scheme] = self.picture(f"page-{scheme}.png", 1280, 900)
        self.assertNotEqual(pictures["light"], pictures["dark"])
        self.assertGreater(min(map(len, pictures.values())), 20000)

        # On a phone nothing sticks out, tables scroll within themselves.
        self.picture("page-phone.png", 390, 844, 2, True)
        for width in (320, 390, 768):
            self.browser.size(width, 844, 2, True)
            self.wait(f"document.documentElement.scrollWidth <= {width}", "that all fits")

        # It asked nobody but the daemon, and nothing complained.
        origin = f"http://127.0.0.1:{self.port}/"
        others = [u for u in self.browser.requests if not u.startswith((origin, "data:"))]
        self.assertEqual(others, [])
        self.assertGreater(len(self.browser.requests), 4)
        self.assertEqual(self.browser.problems, [])

    def test_it_says_what_is_wrong(self):
        self.open()
        pid = self.stop_worker()
        self.wait("document.getElementById('state').textContent === 'not ready'", "not ready")
        self.wait("document.querySelector('.device .pill').textContent === 'its worker is silent'", "why")
        os.kill(pid, signal.SIGCONT)
        self.wait("document.getElementById('state').textContent === 'ready'", "ready again")
        self.assertEqual(self.daemon.stop(), 0)
        self.wait("document.getElementById('state').textContent === 'no answer'", "no answer")
        self.wait("!document.getElementById('trouble').hidden", "the trouble")
        self.assertIn("goes on asking", self.text("#trouble"))

    def test_several_devices_and_a_name_that_is_code(self):
        self.open()
        evil = "<img src=x onerror='window.broken = 1'>"
        status = self.status()
        device = status["devices"][0]
        others = {**device, "device": "GPU-1", "kind": "cuda", "name": evil, "ready": False, "reason": evil}
        status["devices"] = [device, others, {**others, "device": "GPU-2", "state": "down", "figures": None}]
        # The page hears no more of the daemon, nor takes in what is on its way from it.
        self.browser.value("window.fetch = () => new Promise(() => 0); window.take = show; window.show = () => 0")
        self.browser.value(f"take({json.dumps(status)})")
        self.assertEqual(self.browser.value("document.querySelectorAll('.device').length"), 3)
        self.assertEqual(self.browser.value("document.querySelectorAll('img').length"), 0)
        self.assertIsNone(self.browser.value("window.broken"))
        self.assertFalse(self.browser.value("document.getElementById('choice').hidden"))
        self.assertEqual(self.text("#tile-sessions"), str(2 * device["figures"]["sessions"]))
        self.browser.value("document.getElementById('device').value = 'GPU-2'")
        self.browser.value(f"take({json.dumps(status)})")
        self.assertEqual(self.text("#tile-sessions"), "0")
        self.assertEqual(self.browser.problems, [])


if __name__ == "__main__":
    unittest.main()
