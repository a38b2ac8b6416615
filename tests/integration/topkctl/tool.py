"""Running topkctl from tests, and the selection contract in NumPy."""

import json
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

TOPKCTL = os.environ["TOPKCTL"]


def run(*arguments, **options):
    """Runs topkctl; returns the finished process."""
    command = [TOPKCTL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def until(condition, what, seconds=60):
    """Waits for a true value of condition(), and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


class ToolTest(unittest.TestCase):
    """A test with a folder of its own, which is the current one."""

    def setUp(self):
        self.maxDiff = None
        folder = tempfile.TemporaryDirectory(prefix="topkctl-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        before = os.getcwd()
        os.chdir(folder.name)
        self.addCleanup(os.chdir, before)

    def good(self, *arguments, **options):
        """topkctl that must succeed; returns its standard output."""
        done = run(*arguments, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{arguments}: {done}")
        return done.stdout

    def good_json(self, *arguments, **options):
        return json.loads(self.good(*arguments, "--json", **options))

    def bad(self, code, words, *arguments, **options):
        """topkctl that must fail with this exit code and these words on stderr, in both forms."""
        for extra in ([], ["--json"]):
            done = run(*extra, *arguments, **options)
            self.assertEqual(done.returncode, code, f"{arguments} {extra}: {done}")
            for word in words:
                self.assertIn(word, done.stderr)
            if extra and code != 2:
                error = json.loads(done.stdout)["error"]
                self.assertIn(error["message"], done.stderr)
            else:
                self.assertEqual(done.stdout, "")


def reference(scores, lengths, k, order="index"):
    """The answer with ties going to the lowest positions, in index or value order."""
    rows, width = scores.shape
    result = np.full((rows, k), -1, dtype=np.int32)
    for row in range(rows):
        length = int(np.clip(lengths[row], 0, width))
        valid = scores[row, :length]
        # A stable sort by descending rank: NaN below everything, -0 equal to +0.
        is_nan = np.isnan(valid)
        ranked = np.lexsort((np.arange(length), -np.where(is_nan, 0, valid), is_nan))
        best = ranked[:k]
        if order == "index":
            best = np.sort(best)
        result[row, : len(best)] = best
    return result


def values_of(scores, indices):
    """The scores at the positions, -inf beside -1, as bits."""
    found = np.take_along_axis(scores, np.maximum(indices, 0).astype(np.int64), axis=1)
    found = np.where(indices < 0, np.float32(-np.inf), found)
    return found.astype(np.float32).view(np.uint32)


class Daemon:
    """A topkd on its CPU device in a folder of its own; ended when the test ends."""

    def __init__(self, test, *options):
        # Not the test's folder: the path of a socket is short.
        folder = tempfile.TemporaryDirectory(prefix="topkd-")
        test.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.url = f"ipc://{folder.name}/topkd.sock"
        self.log = open(Path(folder.name) / "log", "w+", encoding="utf-8")
        test.addCleanup(self.log.close)
        command = [os.environ["TOPKD"], "--device", "cpu", "--socket-dir", folder.name, *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        test.addCleanup(self.stop)
        ready = run("ping", "--url", self.url, "--timeout", "60s")
        test.assertEqual(ready.returncode, 0, f"{ready.stderr}{self.read_log()}")

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """Ends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
            raise


class DaemonTest(ToolTest):
    """A test with a daemon, self.daemon, and the options that name it, self.url."""

    settings = ""  # the daemon's configuration

    def setUp(self):
        super().setUp()
        with open("topkd.yaml", "w", encoding="utf-8") as file:
            file.write(self.settings)
        self.daemon = Daemon(self, "--config", os.path.abspath("topkd.yaml"))
        self.url = ("--url", self.daemon.url)
