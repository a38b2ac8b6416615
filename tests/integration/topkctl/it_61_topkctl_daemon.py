"""topkctl with a daemon: what it shows, what it selects, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
import unittest

import numpy as np
from tool import DaemonTest, ToolTest, reference, run, until

INDEXER_CLIENT = os.environ["INDEXER_CLIENT"]
NO_DAEMON = "ipc:///nonexistent/topkd.sock"


class WithClients(DaemonTest):
    def start_client(self, *options):
        command = [INDEXER_CLIENT, "--url", self.daemon.url, *map(str, options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process


class Looking(WithClients):
    def test_devices(self):
        shown = self.good_json("devices", *self.url)
        self.assertEqual(shown["url"], self.daemon.url)
        (device,) = shown["devices"]
        self.assertEqual((device["device"], device["kind"], device["state"]), ("cpu", "cpu", "ready"))
        os.kill(device["pid"], 0)  # the worker exists
        heading, row = self.good("devices", *self.url).splitlines()
        self.assertRegex(heading, r"^DEVICE +STATE +EPOCH +RESTARTS +PID +NAME$")
        self.assertRegex(row, rf"^cpu +ready +{device['epoch']} +0 +{device['pid']} +CPU, ")

    def doctor(self):
        """What doctor found, by subject: level, text, fix. A GPU of this machine is not asked for."""
        shown = json.loads(run("doctor", *self.url, "--json").stdout)
        found = {f["subject"]: (f["level"], f["text"], f.get("fix")) for f in shown["findings"]}
        levels = [finding["level"] for finding in shown["findings"]]
        self.assertEqual(shown["worst"], max(levels, key=("OK", "WARN", "FAIL").index))
        return found

    def test_doctor(self):
        found = self.doctor()
        for subject in ("socket", "daemon", "worker", "memory", "namespace"):
            self.assertEqual((found[subject][0], found[subject][2]), ("OK", None), found)
        self.assertIn(f"{self.daemon.url} answers, 1 device", found["daemon"][1])
        self.assertIn("mapped by the other", found["memory"][1])
        (device,) = self.good_json("devices", *self.url)["devices"]
        os.kill(device["pid"], signal.SIGKILL)
        until(
            lambda: [
                d
                for d in self.good_json("devices", *self.url)["devices"]
                if d["state"] == "ready" and d["restarts"] == 1
            ],
            "the worker's next life",
        )
        level, text, fix = self.doctor()["worker"]
        self.assertEqual((level, text), ("WARN", "cpu is ready, but was restarted 1 time"))
        self.assertIn("worker_exit", fix)

    def test_ping(self):
        self.assertRegex(self.good("ping", *self.url), r"^cpu answers .*20 round trips, min \d")
        shown = self.good_json("ping", *self.url, "--device", "cpu")
        self.assertEqual(shown["device"], "cpu")
        self.assertLessEqual(shown["min_ns"], shown["median_ns"])
        self.assertLessEqual(shown["median_ns"], shown["max_ns"])
        self.assertGreater(shown["min_ns"], 0)

    def test_sessions(self):
        until(
            lambda: self.good_json("sessions", *self.url) == {"sessions": [], "hidden": 0},
            "the end of the session that waited for the daemon",
        )
        self.start_client("--rows", 3, "--width", 5000, "--k", 7, "--repeats", 1000000)
        (session,) = until(
            lambda: [
                s for s in self.good_json("sessions", *self.url)["sessions"] if s["requests"] > 0
            ],
            "a session that has selected",
        )
        self.assertEqual(session["client"], "indexer_client")
        self.assertEqual((session["device"], session["uid"]), ("cpu", os.getuid()))
        self.assertEqual(session["regions"], 1)
        self.assertGreaterEqual(session["mapped_bytes"], 3 * 5000 * 4)
        heading, row = self.good("sessions", *self.url, "--device", "cpu").splitlines()
        self.assertEqual(heading.split()[:3], ["DEVICE", "SESSION", "CLIENT"])
        self.assertIn("indexer_client", row)

    def test_stats_count_selections(self):
        np.save("scores.npy", np.random.default_rng(1).standard_normal((9, 40000), np.float32))
        np.save("lengths.npy", np.array([-5, 0, 3, 40000, 40001, 30000, 20000, 10000, 9999], "<i4"))
        before = self.good_json("stats", *self.url)["devices"][0]
        self.good(
            "select", "scores.npy", "-k", 16, "--lengths", "lengths.npy", "--verify", *self.url
        )
        after = self.good_json("stats", *self.url)["devices"][0]
        grown = {key: after[key] - before[key] for key in after if key.startswith("rows_")}
        self.assertEqual(after["requests"] - before["requests"], 1)
        self.assertEqual(grown.pop("rows_clamped"), 2)
        self.assertEqual(grown["rows_copied"], 3)
        self.assertEqual(sum(grown.values()), 9)
        self.assertEqual(sum(after["request"]["log2_bins"]), after["requests"])
        self.assertGreater(after["run"]["p99_ns"], 0)
        self.assertIn(1, [bucket["requests"] for bucket in after["buckets"]])
        text = self.good("stats", *self.url)
        self.assertRegex(text, r"(?m)^COUNTER +cpu$")
        self.assertRegex(text, r"(?m)^lengths clamped +2$")
        self.assertRegex(text, r"(?m)^DEVICE +BUCKET +ROWS +WIDTH +K +DTYPE +SELECTIONS$")

    def test_a_device_that_is_not_there(self):
        for command in ("ping", "sessions", "stats"):
            self.bad(1, ['"nope"', "topkctl devices"], command, "--device", "nope", *self.url)


class Selecting(WithClients):
    settings = "limits: {region_bytes_max: 1MiB}\n"  # so that small files take many blocks

    def setUp(self):
        super().setUp()
        random = np.random.default_rng(5)
        self.scores = (random.integers(-50, 50, (50, 20000)) / 4).astype(np.float32)
        self.lengths = random.integers(-10, 20010, 50).astype(np.int32)
        np.save("scores.npy", self.scores)
        np.save("lengths.npy", self.lengths)
        np.save("offsets.npy", random.integers(-1000, 1000, 50).astype(np.int32))
        pages = np.stack([random.permutation(5000)[:313] for _ in range(50)])
        np.save("pages.npy", pages.astype(np.int32))

    def test_the_daemon_answers_as_this_process_does(self):
        inputs = ("select", "scores.npy", "--lengths", "lengths.npy", "--verify")
        pages = ("--page-table", "pages.npy", "--page-size", 64, "--row-offsets", "offsets.npy")
        for options in (
            ("-k", 100, "--deterministic"),
            ("-k", 2048, "--order", "value", "--ties", "lowest"),
            ("-k", 5, "--deterministic", *pages),
            ("-k", 3000, "--deterministic", *pages),
        ):
            for place, name in ((self.url, "daemon"), (("--local",), "local")):
                results = ("--out", f"{name}.npy", "--values", f"{name}-values.npy")
                shown = self.good_json(*inputs, *options, *results, *place)
                self.assertEqual(shown["rows_verified"], 50)
                self.assertGreaterEqual(shown["blocks"], 4 if name == "daemon" else 1)
            for kind in ("", "-values"):
                daemon, local = (np.load(f"{place}{kind}.npy") for place in ("daemon", "local"))
                self.assertEqual(daemon.tobytes(), local.tobytes(), f"{options} {kind}")

    def test_positions_are_right(self):
        self.good(
            "select", "scores.npy", "--lengths", "lengths.npy", "-k", 64, "--deterministic",
            "--out", "out.npy", *self.url,
        )  # fmt: skip
        expected = reference(self.scores, self.lengths, 64)
        np.testing.assert_array_equal(np.load("out.npy"), expected)

    def test_a_worker_that_dies_is_survived(self):
        (device,) = self.good_json("devices", *self.url)["devices"]
        os.kill(device["pid"], signal.SIGKILL)
        self.good("select", "scores.npy", "-k", 64, "--verify", *self.url)
        (after,) = self.good_json("devices", *self.url)["devices"]
        self.assertNotEqual(after["epoch"], device["epoch"])
        self.assertEqual(after["restarts"], 1)

    def test_the_example_reads_the_same_files(self):
        np.save("few.npy", self.scores[:8])
        done = self.start_client("--scores", "few.npy", "--k", 64, "--repeats", 2)
        text, errors = done.communicate(timeout=120)
        self.assertEqual((done.returncode, errors), (0, ""))
        self.assertRegex(text, r"^rows=8 width=20000 k=64 exact=yes p50_us=\d+ p99_us=\d+\n$")


class Limits(WithClients):
    settings = "limits: {region_bytes_max: 1MiB}\n"

    def test_a_row_beyond_the_region_limit(self):
        np.save("narrow.npy", np.zeros((9, 100000), np.float32))
        np.save("wide.npy", np.zeros((2, 300000), np.float32))
        shown = self.good_json("select", "narrow.npy", "-k", 4, "--verify", *self.url)
        self.assertEqual((shown["blocks"], shown["rows_verified"]), (5, 9))
        words = ["one row has 300000 scores", "1048576", "--local"]
        self.bad(1, words, "select", "wide.npy", "-k", 4, *self.url)


class Ending(WithClients):
    def test_drain_ends_the_daemon(self):
        shown = self.good_json("drain", *self.url)
        self.assertTrue(shown["ended"])
        self.assertEqual(self.daemon.process.wait(60), 0)
        self.bad(3, ["cannot be reached", self.daemon.url], "devices", *self.url, "--timeout", "1")

    def test_drain_says_so(self):
        self.assertIn("has finished its work and ended", self.good("drain", *self.url))


class WithoutDaemon(ToolTest):
    def test_nobody_there(self):
        np.save("scores.npy", np.zeros((1, 8), np.float32))
        for command in (["ping"], ["devices"], ["sessions"], ["stats"], ["drain"],
                        ["select", "scores.npy", "-k", 1]):  # fmt: skip
            words = ["the daemon cannot be reached", NO_DAEMON, "start topkd"]
            line = [*command, "--url", NO_DAEMON, "--timeout", "200ms"]
            self.bad(3, words, *line)
            self.assertEqual(run(*line).stderr.count(NO_DAEMON), 1)

    def test_a_url_of_another_kind(self):
        self.bad(1, ["tcp://localhost", "ipc:///"], "devices", "--url", "tcp://localhost")

    def test_check_config(self):
        with open("good.yaml", "w", encoding="utf-8") as file:
            file.write("limits:\n  lanes: 2\n")
        with open("bad.yaml", "w", encoding="utf-8") as file:
            file.write("limits:\n  lains: 2\n")
        self.good("check-config", "good.yaml")
        self.assertTrue(self.good_json("check-config", "good.yaml")["ok"])
        done = run("check-config", "bad.yaml")
        self.assertEqual(done.returncode, 1)
        self.assertIn("bad.yaml:2", done.stdout + done.stderr)
        self.assertIn("lains", done.stdout + done.stderr)
        self.assertEqual(run("check-config", "none.yaml").returncode, 1)

    def test_many_errors_and_odd_names(self):
        name = 'odd"\n.yaml'
        with open(name, "w", encoding="utf-8") as file:
            file.write("limits:\n" + "".join(f"  none_{i}: 1\n" for i in range(40)))
        done = run("check-config", name)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("unknown key"), 16)
        self.assertIn("and 24 more errors", done.stderr)
        shown = json.loads(run("check-config", name, "--json").stdout)
        self.assertEqual((shown["file"], shown["ok"], shown["num_errors"]), (name, False, 40))
        self.assertEqual(len(shown["errors"]), 16)


if __name__ == "__main__":
    unittest.main()
