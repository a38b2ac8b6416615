"""A headless Chromium, steered through its debugging pipe: descriptors 3 and 4, JSON and NUL."""

import base64
import json
import os
import subprocess
import tempfile
import time


class Browser:
    """One page in a browser with a profile of its own; `add_cleanup` takes what ends it."""

    def __init__(self, add_cleanup, width=1280, height=900):
        profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        add_cleanup(profile.cleanup)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [os.environ["CHROMIUM"], "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check"]
        command += ["--disable-extensions", "--disable-background-networking", "--disable-sync"]
        command += ["--disable-component-update", "--hide-scrollbars", "--mute-audio"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile.name}"]
        command += [f"--window-size={width},{height}", "about:blank"]

        def place():  # the numbers that Chromium expects
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4, theirs_in, theirs_out),
            preexec_fn=place,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.buffer = b""
        self.number = 0
        self.session = None
        self.problems = []
        add_cleanup(self.close)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def close(self):
        self.process.kill()
        self.process.wait(30)
        os.close(self.input)
        os.close(self.output)

    def message(self, deadline):
        while b"\0" not in self.buffer:
            if time.monotonic() > deadline:
                raise AssertionError("the browser does not answer")
            chunk = os.read(self.input, 1 << 20)
            if not chunk:
                raise AssertionError("the browser has ended")
            self.buffer += chunk
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def note(self, message):
        """Whatever the page's console, its requests or its policy complain about."""
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(what["exceptionDetails"].get("text", "") + str(what)[:600])
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    requests: list = []

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def size(self, width, height, scale=1, mobile=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def scheme(self, name):
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url):
        self.requests = []
        self.call("Page.navigate", url=url)

    def value(self, script):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
