"""topkctl bench: what it measures, what it says when that fails, and that it leaves nothing behind."""

import json
import os
import pty
import re
import signal
import subprocess
import threading
import unittest
from pathlib import Path

from tool import TOPKCTL, DaemonTest, until

SMALL = ("--shape", "4x8192x64", "--duration", "500ms")


def states(pid):
    """Of the threads of a process, a letter each."""
    return {
        (thread / "stat").read_text().rpartition(")")[2].split()[0]
        for thread in Path(f"/proc/{pid}/task").iterdir()
    }


class Bench(DaemonTest):
    settings = "limits: {sessions_max: 6}\n"

    def sessions(self):
        return self.good_json("sessions", *self.url)["sessions"]

    def renewed(self, before):
        """Whether clients have selected from the worker after this one."""
        (device,) = self.good_json("devices", *self.url)["devices"]
        if device["epoch"] == before["epoch"] or device["state"] != "ready":
            return False
        return any(session["requests"] > 4 for session in self.sessions())

    def start(self, *options):
        """A bench that goes on until it is interrupted, and already measures. The second gives what it
        has said on its terminal beside its progress, once it has ended."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [TOPKCTL, "bench", *self.url, "--duration", "600s", *options],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        drawn = bytearray()

        def read():
            try:
                while chunk := os.read(ours, 4096):
                    drawn.extend(chunk)
            except OSError:  # its end is closed
                pass
            os.close(ours)

        reader = threading.Thread(target=read)
        reader.start()
        self.addCleanup(reader.join)
        until(lambda: re.search(rb"bench: \d+\.\d of 600\.0 s, [1-9]", drawn), "selections that count")

        def said():
            reader.join()
            return re.sub(rb"\r\x1b\[K(bench: [^\r]*)?", b"", bytes(drawn))

        return process, said

    def test_the_figures_add_up(self):
        before = self.good_json("stats", *self.url)["devices"][0]["requests"]
        shapes = "4x8192x64,16x4096x32"
        for seconds in (1, 5, 25):  # how much is done in a second is the machine's affair
            shown = self.good_json(
                *("bench", *self.url, "--shape", shapes, "--duration", f"{seconds}s"),
                *("--clients", 2, "--threads", 2, "--outstanding", 3, "--scores", "ties"),
            )
            if shown["requests"] > 100:
                break
        self.assertEqual((shown["device"], shown["clients"], shown["threads"]), ("cpu", 2, 2))
        self.assertEqual(
            shown["shapes"],
            [{"rows": 4, "width": 8192, "k": 64}, {"rows": 16, "width": 4096, "k": 32}],
        )
        self.assertEqual(shown["duration_ns"], seconds * 1000000000)
        self.assertGreater(shown["requests"], 100)
        self.assertAlmostEqual(shown["requests_per_s"], shown["requests"] / seconds, delta=1)
        self.assertEqual(shown["failed"], 0)
        self.assertEqual(shown["statuses"], {"TOPKD_OK": shown["requests"]})
        self.assertEqual([len(shown["each"])], [4])
        self.assertEqual(sum(each["requests"] for each in shown["each"]), shown["requests"])
        self.assertGreater(min(each["requests"] for each in shown["each"]), 0)
        latency = shown["latency"]
        self.assertEqual(sum(count for _, count in latency["bins"]), shown["requests"])
        order = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"]
        self.assertEqual([latency[key] for key in order], sorted(latency[key] for key in order))
        # Both shapes in turn: ten rows a request on average.
        self.assertAlmostEqual(shown["rows_per_s"] / shown["requests_per_s"], 10, delta=1)
        # More than was counted ran: the warm-up and what came late.
        after = self.good_json("stats", *self.url)["devices"][0]["requests"]
        self.assertGreaterEqual(after - before, shown["requests"])
        until(lambda: self.sessions() == [], "the end of all sessions")

    def test_for_people(self):
        for duration, shown in (("500ms", "0.50"), ("10s", "10.00")):  # enough for one, on any machine
            options = ("--shape", "4x8192x64", "--duration", duration, "--scores", "equal")
            text = self.good("bench", *self.url, *options)
            if re.search(r"(?m)^[1-9]\d* selections", text):
                break
        self.assertRegex(text, r"^device cpu, 1 client, 1 in flight each, equal scores, shapes 4x8192x64\n")
        self.assertRegex(
            text, rf"\n\d+ selections in {shown} s: [\d.]+/s, \d+ rows/s, [\d.]+ \w+/s of scores\n"
        )
        self.assertRegex(text, r"\nfrom start to end: mean .* p50 .* p90 .* p99 .* p999 .* max .*\n")
        bars = re.findall(r"(?m)^ *[\d.]+ [nmu]?s to +[\d.]+ [nmu]?s +(\d+)  (#*)", text)
        total = int(re.search(r"(?m)^(\d+) selections", text).group(1))
        self.assertEqual(sum(int(count) for count, _ in bars), total)
        self.assertGreater(max(len(bar) for _, bar in bars), 9)

    def test_progress_on_a_terminal_alone(self):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [TOPKCTL, "bench", *self.url, "--shape", "4x8192x64", "--duration", "1s", "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        drawn = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the terminal's other end is closed
                break
            if not chunk:
                break
            drawn += chunk
        shown = json.loads(process.communicate(timeout=60)[0])
        os.close(ours)
        self.assertEqual((process.returncode, shown["failed"]), (0, 0))
        self.assertRegex(drawn, rb"\r\x1b\[Kbench: \d\.\d of 1\.0 s, \d+ selections/s")
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-80:])

    def test_what_cannot_be(self):
        self.bad(3, ["cannot be reached"], "bench", "--url", "ipc:///nowhere", "--timeout", "200ms", *SMALL)
        self.bad(1, ["--outstanding 33", "limits.outstanding_max"], "bench", *self.url, "--outstanding", 33, *SMALL)
        self.bad(1, ["a configured limit is reached"], "bench", *self.url, "--clients", 7, *SMALL)
        self.bad(1, ["nope"], "bench", *self.url, "--device", "nope", *SMALL)
        for wrong in ("4x5", "0x1x1", "1x1x16385", "1x1x1,", "1x1x1x1", "axbxc", "1x-1x1", ",".join(["1x1x1"] * 17)):
            self.bad(2, ["--shape"], "bench", "--shape", wrong)
        self.bad(2, ["--clients"], "bench", "--clients", 257)
        self.bad(2, ["--order value"], "bench", "--deterministic", "--order", "value")
        self.bad(2, ["takes no --clients"], "stats", "--clients", 1)
        until(lambda: self.sessions() == [], "the end of all sessions")

    def test_failures_are_counted_by_status(self):
        # The worker dies in the middle: its clients renew and go on, or say what failed.
        process, _ = self.start("--shape", "16x65536x512", "--outstanding", "4", "--json")
        (before,) = self.good_json("devices", *self.url)["devices"]
        # Stopped first: one that is killed may just have answered all there was. A client whose
        # threads all sleep has sent again.
        os.kill(before["pid"], signal.SIGSTOP)
        until(lambda: states(before["pid"]) == {"T"}, "a stopped worker")
        until(lambda: states(process.pid) == {"S"}, "a client that waits")
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: self.renewed(before), "a renewed session")
        process.send_signal(signal.SIGINT)
        shown = json.loads(process.communicate(timeout=60)[0])
        self.assertEqual(process.returncode, 1 if shown["failed"] else 0)
        self.assertGreater(shown["requests"], 0)
        self.assertEqual(sum(shown["statuses"].values()), shown["requests"] + shown["failed"])
        self.assertGreaterEqual(shown["retries"] + shown["failed"], 1)

    def test_interrupted(self):
        process, said = self.start("--shape", "4x8192x64", "--clients", "3")
        until(lambda: sum(s["requests"] > 0 for s in self.sessions()) == 3, "three clients at work")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        text, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said()), (0, b""))
        self.assertRegex(text, r"(?m)^[1-9]\d* selections in \d")
        until(lambda: self.sessions() == [], "the end of all sessions")


if __name__ == "__main__":
    unittest.main()
