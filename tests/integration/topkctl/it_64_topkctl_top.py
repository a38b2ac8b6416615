"""topkctl top, on a terminal (of which the test is the other end) and elsewhere."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from tool import TOPKCTL, Daemon, ToolTest

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
INTERVALS = ("300ms", "10s")  # the longer one is enough for a selection on any machine


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, test, command, lines, columns):
        self.master, slave = pty.openpty()
        self.size(lines, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.output = b""
        os.set_blocking(self.master, False)
        test.addCleanup(self.close)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self.master)
        os.close(self.slave)

    def size(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self):
        try:
            self.output += os.read(self.master, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)

    def frames(self):
        """What was drawn, a list of lines for each time."""
        found = re.findall(re.escape(BEGIN) + rb"\x1b\[H(.*?)" + re.escape(b"\x1b[J" + END), self.output, re.S)
        return [
            [line.removesuffix("\x1b[K") for line in re.split(r"\r+\n", frame.decode())] for frame in found
        ]

    def wait(self, condition, what):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.read()
            value = condition()
            if value:
                return value
        raise AssertionError(f"not within 60 s: {what}; output ends with {self.output[-800:]!r}")

    def wait_frame(self, condition, what):
        """A frame that was drawn from now on."""
        seen = len(self.frames())
        return self.wait(lambda: next((f for f in self.frames()[seen:] if condition(f)), None), what)


class Top(ToolTest):
    def setUp(self):
        super().setUp()
        self.daemon = Daemon(self)
        self.url = ("--url", self.daemon.url)

    def load(self, clients=2):
        command = [TOPKCTL, "bench", *self.url, "--shape", "8x16384x128", "--duration", "600s"]
        process = subprocess.Popen([*command, "--clients", str(clients)], stdout=subprocess.DEVNULL)

        def end():
            process.send_signal(signal.SIGINT)
            process.wait(60)

        self.addCleanup(end)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            sessions = self.good_json("sessions", *self.url)["sessions"]
            if sum(s["requests"] > 0 for s in sessions) == clients:
                return process
            time.sleep(0.05)
        raise AssertionError("the clients did not begin")

    def terminal(self, *options, lines=30, columns=140):
        return Terminal(self, [TOPKCTL, "top", *self.url, *options], lines, columns)

    def test_not_on_a_terminal(self):
        self.load()
        for interval in INTERVALS:
            text = self.good("top", *self.url, "--count", 2, "--interval", interval)
            if len(re.findall(r"(?m)^cpu +ready +[1-9]", text)) == 2:
                break
        self.assertNotIn("\x1b", text)
        blocks = text.strip().split("\n\ntopkd at ")
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            heading, device = block.splitlines()[2:4]
            self.assertEqual(heading.split()[:4], ["DEVICE", "STATE", "SELECT/S", "FAILED/S"])
            self.assertRegex(device, r"^cpu +ready +[1-9][\d.k]* +0 +[\d.]+ [mu]s +[\d.]+ [mu]s ")
            self.assertRegex(block, r"(?m)^(direct|certified) +[1-9][\d.k]*  #+$")
            clients = re.findall(r"(?m)^topkctl bench +(\d+) +(\d+) +([\d.k]+) ", block)
            self.assertEqual(len(clients), 2)
            self.assertEqual({int(uid) for _, uid, _ in clients}, {os.getuid()})

    def test_as_json(self):
        self.load()
        for interval in INTERVALS:
            text = self.good("top", *self.url, "--json", "--count", 2, "--interval", interval)
            looks = [json.loads(line) for line in text.splitlines()]
            if all(look["devices"][0]["requests_per_s"] > 0 for look in looks):
                break
        self.assertEqual(len(looks), 2)
        for look in looks:
            (device,) = look["devices"]
            self.assertGreater(device["requests_per_s"], 0)
            self.assertGreaterEqual(device["request_p99_ns"], device["request_p50_ns"])
            self.assertGreater(sum(device["rows_per_s"].values()), 0)
            rates = [client["requests_per_s"] for client in look["clients"]]
            self.assertEqual(len(rates), 2)
            self.assertEqual(rates, sorted(rates, reverse=True))
            self.assertGreaterEqual(look["interval_ns"], 150000000)

    def test_on_a_terminal(self):
        self.load()
        terminal = self.terminal("--interval", "200ms")
        frame = terminal.wait_frame(lambda f: any(re.match(r"cpu +ready +[1-9]", l) for l in f), "rates")
        self.assertTrue(terminal.output.startswith(ENTER))
        self.assertLessEqual(len(frame), 30)
        self.assertEqual(sum(line.startswith("topkctl bench") for line in frame), 2)
        # Nothing is ever cleared while the program draws: that is what would flicker.
        self.assertEqual(terminal.output.count(b"\x1b[2J"), 1)
        os.write(terminal.master, b"q")
        terminal.wait(lambda: terminal.process.poll() is not None, "the end")
        terminal.read()
        self.assertEqual(terminal.process.returncode, 0)
        self.assertTrue(terminal.output.endswith(LEAVE), terminal.output[-60:])
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)

    def test_it_follows_the_size(self):
        self.load(clients=4)
        terminal = self.terminal("--interval", "60s", columns=200)  # only the size makes it draw
        terminal.wait(lambda: terminal.frames(), "the first frame")
        for lines, columns in ((40, 200), (19, 50), (3, 20), (1, 1), (17, 33), (50, 300)):
            terminal.size(lines, columns)


            def fits(frame, lines=lines, columns=columns):
                return len(frame) <= lines and max(len(line) for line in frame) <= columns

            terminal.wait_frame(fits, f"a frame of {lines} x {columns}")
            terminal.read()
            frame = terminal.frames()[-1]
            self.assertTrue(fits(frame), frame)
        self.assertEqual(sum(line.startswith("topkctl bench") for line in frame), 4)
        terminal.size(18, 200)  # room for some of the clients
        frame = terminal.wait_frame(lambda f: True, "a small frame")
        self.assertRegex(frame[-1], r"^and [1-4] more$")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.wait(lambda: terminal.process.poll() is not None, "the end")
        terminal.read()
        self.assertTrue(terminal.output.endswith(LEAVE))

    def test_it_goes_to_sleep_in_good_order(self):
        terminal = self.terminal("--interval", "200ms")
        terminal.wait(lambda: terminal.frames(), "the first frame")
        os.write(terminal.master, b"\x1a")  # Ctrl-Z

        def state():
            with open(f"/proc/{terminal.process.pid}/stat", encoding="ascii") as file:
                return file.read().rsplit(")", 1)[1].split()[0]

        # A session of its own has no shell that could wake it up: the kernel does not stop it, or
        # does; in both cases the terminal was given back first.
        terminal.wait(lambda: terminal.output.count(LEAVE) == 1 or state() == "T", "it sleeps")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait(lambda: terminal.output.count(ENTER) == 2, "it is back")
        terminal.wait_frame(lambda f: True, "another frame")
        os.write(terminal.master, b"\x03")  # Ctrl-C
        terminal.wait(lambda: terminal.process.poll() is not None, "the end")
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)

    def test_it_goes_on_while_the_daemon_is_away(self):
        self.bad(3, ["cannot be reached"], "top", "--url", "ipc:///nowhere", "--timeout", "200ms", "--count", 1)
        self.bad(1, ["nope"], "top", *self.url, "--device", "nope", "--count", 1)
        terminal = self.terminal("--interval", "200ms", "--timeout", "1s")
        terminal.wait_frame(lambda f: any(l.startswith("cpu ") for l in f), "the device")
        self.assertEqual(self.daemon.stop(), 0)
        terminal.wait_frame(lambda f: any(l.startswith("no answer: ") for l in f), "no answer")
        command = [os.environ["TOPKD"], "--device", "cpu", "--socket-dir", self.daemon.folder]
        self.daemon.process = subprocess.Popen(command, stdout=self.daemon.log, stderr=self.daemon.log)
        terminal.wait_frame(lambda f: any(re.match("cpu +ready", l) for l in f), "the device again")


if __name__ == "__main__":
    unittest.main()
