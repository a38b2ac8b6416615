"""The daemon's HTTP pages: what they give, and when a device counts as ready."""

import os
import re
import signal
import socket
import subprocess
import unittest

import numpy as np
from web import Daemon, ToolTest, WebTest, until

PAGES = {
    "/": "text/html; charset=utf-8",
    "/page.css": "text/css; charset=utf-8",
    "/page.js": "text/javascript; charset=utf-8",
    "/livez": "text/plain; charset=utf-8",
    "/readyz": "text/plain; charset=utf-8",
    "/metrics": "text/plain; version=0.0.4; charset=utf-8",
    "/status.json": "application/json",
}


def select(test, rows=7, width=40000, k=16):
    np.save("scores.npy", np.random.default_rng(3).standard_normal((rows, width), np.float32))
    test.good("select", "scores.npy", "-k", k, "--verify", *test.url)


class Pages(WebTest):
    def test_every_page_with_its_headers(self):
        for path, content_type in PAGES.items():
            answer, body = self.get(path)
            self.assertEqual((path, answer.status), (path, 200))
            self.assertEqual(answer.getheader("Content-Type"), content_type)
            self.assertEqual(answer.getheader("Connection"), "close")
            self.assertEqual(answer.getheader("Cache-Control"), "no-store")
            self.assertEqual(answer.getheader("X-Content-Type-Options"), "nosniff")
            self.assertIn("default-src 'none'", answer.getheader("Content-Security-Policy"))
            self.assertIn("frame-ancestors 'none'", answer.getheader("Content-Security-Policy"))
            self.assertGreater(len(body), 4)
            head, nothing = self.get(path, "HEAD")
            self.assertEqual((head.status, nothing), (200, b""))
            if path not in ("/readyz", "/metrics", "/status.json"):  # those change
                self.assertEqual(head.getheader("Content-Length"), str(len(body)))
            self.assertEqual(self.get(path + "?x=1")[0].status, 200)

    def test_the_page_loads_nothing_from_elsewhere(self):
        text = b"".join(self.get(path)[1] for path in ("/", "/page.css", "/page.js"))
        addresses = set(re.findall(rb"(?:https?:)?//[\w.-]+\.\w+[\w./-]*", text))
        self.assertEqual(addresses - {b"http://www.w3.org/2000/svg"}, set())

    def test_it_listens_on_loopback_alone(self):
        with open("/proc/net/tcp", encoding="ascii") as file:
            listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
        mine = [address for address in listening if int(address.split(":")[1], 16) == self.port]
        self.assertEqual(mine, [f"0100007F:{self.port:04X}"])

    def test_metrics_count_what_was_done(self):
        before = self.metrics()
        select(self)
        wanted = before['topkd_requests_total{device="cpu",code="ok"}'] + 1
        until(
            lambda: self.metrics()['topkd_requests_total{device="cpu",code="ok"}'] == wanted,
            "the selection in the metrics",
        )
        routes = 'topkd_rows_total{device="cpu",route="'
        until(
            lambda: sum(v - before[k] for k, v in self.metrics().items() if k.startswith(routes))
            == 7,
            "seven rows by route",
        )
        after = self.metrics()
        self.assertEqual(after['topkd_request_duration_seconds_count{device="cpu"}'], wanted)
        self.assertEqual(
            after['topkd_request_duration_seconds_bucket{device="cpu",le="+Inf"}'], wanted
        )
        self.assertGreater(after['topkd_device_duration_seconds_sum{device="cpu"}'], 0)
        opened = after['topkd_sessions_opened_total{device="cpu"}']
        self.assertEqual(opened, 2)  # of the ping that waited for the daemon, and of select
        until(
            lambda: self.metrics()['topkd_sessions_reaped_total{device="cpu",reason="closed"}']
            == opened,
            "the end of the session",
        )
        buckets = [v for k, v in after.items() if k.startswith("topkd_bucket_requests_total{")]
        self.assertEqual(sum(buckets), 1)
        self.assertEqual(after['topkd_worker_restarts_total{device="cpu"}'], 0)
        self.assertEqual(after["topkd_ready"], 1)
        version = self.good_json("version")["topkctl"]
        self.assertEqual(after[f'topkd_build_info{{version="{version}",wire="1"}}'], 1)
        self.assertNotRegex("\n".join(after), r"pid|uid=|client")

    def test_status_shows_the_device_and_its_sessions_without_names(self):
        select(self)
        figures = until(
            lambda: (f := self.status()["devices"][0]["figures"])["requests"] == 1 and f, "a request"
        )
        self.assertEqual(figures["codes"], {"ok": 1})
        self.assertEqual(sum(figures["request"]["log2_bins"]), 1)
        (bucket,) = [b for b in figures["buckets"] if b["requests"] > 0]
        self.assertGreaterEqual((bucket["rows"], bucket["width"], bucket["k"]), (7, 40000, 16))
        # The figures may still have the session of that request, half closed.
        until(
            lambda: self.status()["devices"][0]["figures"]["session_list"] == [],
            "the end of the first session",
        )
        command = [os.environ["INDEXER_CLIENT"], "--url", self.daemon.url, "--repeats", "1000000"]
        command += ["--rows", "4", "--width", "8192", "--k", "64"]  # made soon, even by a sanitizer's build
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        (session,) = until(
            lambda: [
                s for s in self.status()["devices"][0]["figures"]["session_list"] if s["requests"]
            ],
            "the client's session",
        )
        self.assertEqual(session["regions"], 1)
        # Nothing that names it. (A number of its process could also be one of something else.)
        self.assertEqual(
            set(session),
            {"session", "age_ms", "requests", "outstanding", "regions", "mapped_bytes", "leases"},
        )
        text = self.get("/status.json")[1].decode()
        self.assertNotIn("indexer", text)
        self.assertNotRegex(text, r'"(pid|uid|gid|client)\w*":')

    def test_counters_begin_anew_with_a_worker(self):
        select(self)
        until(lambda: self.status()["devices"][0]["figures"]["requests"] == 1, "a request")
        os.kill(self.worker_pid(), signal.SIGKILL)
        until(lambda: self.metrics()['topkd_worker_restarts_total{device="cpu"}'] == 1, "a restart")
        until(lambda: self.code("/readyz") == 200, "ready again")
        figures = until(lambda: self.status()["devices"][0]["figures"], "figures of the new worker")
        self.assertEqual(figures["requests"], 0)


class NoPages(ToolTest):
    def test_off_unless_configured(self):
        daemon = Daemon(self)
        inodes = set()
        for descriptor in os.listdir(f"/proc/{daemon.process.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{daemon.process.pid}/fd/{descriptor}")
            except FileNotFoundError:
                continue
            inodes.update(re.findall(r"socket:\[(\d+)\]", target))
        tcp = set()
        for table in ("tcp", "tcp6"):
            with open(f"/proc/net/{table}", encoding="ascii") as file:
                tcp.update(line.split()[9] for line in file)
        self.assertGreater(len(inodes), 1)
        self.assertEqual(inodes & tcp, set())

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with open("topkd.yaml", "w", encoding="utf-8") as file:
                file.write(f"http: {{port: {port}}}\n")
            command = [os.environ["TOPKD"], "--device", "cpu", "--config", "topkd.yaml"]
            command += ["--socket-dir", os.path.abspath("run")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertIn(f"http.port: cannot listen on 127.0.0.1:{port}: address already in use", done.stderr)


class Readiness(WebTest):
    # A hang is not killed in the time of the test, so that readiness alone tells.
    settings = "worker: {hang_ms: 60000, heartbeat_ms: 50, canary_interval_ms: 200}\n"
    http_settings = {"ready_ms": 1000}

    def test_red_while_a_worker_hangs_though_it_lives(self):
        until(lambda: self.code("/readyz") == 200, "green")
        pid = self.stop_worker()
        until(lambda: self.code("/readyz") == 503, "red")
        self.assertEqual(self.code("/livez"), 200)
        silent = b"not ready\ncpu: its worker is silent; last right selection"
        until(lambda: self.get("/readyz")[1].startswith(silent), "the reason")
        self.assertEqual(self.metrics()['topkd_device_ready{device="cpu"}'], 0)
        self.assertEqual(self.status()["devices"][0]["state"], "ready")
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            self.assertEqual(file.read().rsplit(")", 1)[1].split()[0], "T")
        os.kill(pid, signal.SIGCONT)
        until(lambda: self.code("/readyz") == 200, "green again")
        self.assertEqual(self.worker_pid(), pid)

    def test_settings_apply_at_once(self):
        self.stop_worker()
        self.write_settings(ready_ms=500000)
        self.daemon.process.send_signal(signal.SIGHUP)
        until(lambda: self.status()["ready_ms"] == 500200, "the new time")
        self.assertEqual(self.code("/readyz"), 200)

    def test_red_while_draining(self):
        pid = self.stop_worker()
        self.daemon.process.terminate()
        until(lambda: self.get("/readyz")[1].startswith(b"draining\n"), "draining")
        self.assertEqual((self.code("/readyz"), self.code("/livez")), (503, 200))
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.daemon.process.wait(60), 0)


class Stall(WebTest):
    settings = "worker: {canary_interval_ms: 200, heartbeat_ms: 50}\n"
    http_settings = {"ready_ms": 500}

    def setUp(self):
        os.environ["TOPKD_TEST_FAULT"] = "stall@2"
        self.addCleanup(os.environ.pop, "TOPKD_TEST_FAULT")
        super().setUp()

    def test_red_while_the_device_hangs_though_the_loop_turns(self):
        until(lambda: self.code("/readyz") == 503, "red")
        device = until(
            lambda: (d := self.status()["devices"][0])["reason"] == "no selection has ended lately" and d,
            "the reason",
        )
        self.assertEqual(device["state"], "ready")
        self.assertLess(device["heard_ago_ms"], 10000)
        self.assertEqual(self.good_json("stats", *self.url)["devices"][0]["state"], "ready")
        self.daemon.process.kill()  # this worker does not end by itself
        self.daemon.process.wait(60)


class WrongSelections(WebTest):
    settings = "worker: {canary_interval_ms: 100, heartbeat_ms: 50, restart_max_ms: 100}\n"

    def setUp(self):
        os.environ["TOPKD_TEST_FAULT"] = "canary@5"  # of every worker
        self.addCleanup(os.environ.pop, "TOPKD_TEST_FAULT")
        super().setUp()

    def test_they_are_counted_beyond_the_worker_that_made_them(self):
        wrong = 'topkd_canaries_total{device="cpu",result="wrong"}'
        until(lambda: self.metrics()[wrong] >= 2, "two workers' wrong selections")
        self.assertGreaterEqual(self.status()["devices"][0]["canaries_wrong"], 2)


if __name__ == "__main__":
    unittest.main()
