"""Bench, figures and readiness of a CUDA device, whose driver is the stand-in of tests/support/fake_cuda."""

import os
import subprocess
import time
import unittest

from web import TOPKCTL, Daemon, ToolTest, WebTest, held_port, until

GPU = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"


class StandIn(WebTest):
    stand_in = {}  # what is set for it

    def setUp(self):
        ToolTest.setUp(self)
        for name, value in {"LD_PRELOAD": os.environ["STAND_IN"], **self.stand_in}.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name)
        self.port = held_port(self)
        self.write_settings()
        self.daemon = Daemon(self, "--config", os.path.abspath("topkd.yaml"), "--device", GPU)
        self.url = ("--url", self.daemon.url)


class GraphTest(StandIn):
    settings = "limits: {arena_slot_bytes: 65536}\nbuckets: [{rows: 64, width: 32768, k: 512}]\n"

    def test_bench_and_what_the_figures_say_of_graphs(self):
        for duration in ("500ms", "10s"):  # each shape twice, on any machine
            shown = self.good_json(
                *("bench", *self.url, "--shape", "4x4096x64,64x32768x512", "--duration", duration),
                *("--clients", 2, "--outstanding", 2),
            )
            if shown["requests"] > 4:
                break
        self.assertEqual((shown["device"], shown["failed"]), (GPU, 0))
        self.assertGreater(shown["requests"], 4)
        name = f'{{device="{GPU}",bucket="%s",variant="%s"}}'
        known, new = name % ("64x32768x512", "16-byte"), name % ("4x4096x64", "128-byte")
        done = until(
            lambda: (m := self.metrics()).get("topkd_graph_replays_total" + new) and m, "replays"
        )
        self.assertEqual(done["topkd_graph_misses_total" + known], 0)  # it was configured
        self.assertGreater(done["topkd_graph_misses_total" + new], 0)
        for bucket in (known, new):
            self.assertEqual(
                done["topkd_graph_replays_total" + bucket] + done["topkd_graph_misses_total" + bucket],
                done["topkd_bucket_requests_total" + bucket],
            )
        self.assertEqual(done[f'topkd_device_ready{{device="{GPU}"}}'], 1)
        self.assertEqual(done[f'topkd_lanes{{device="{GPU}"}}'], 0)
        self.assertEqual(self.code("/readyz"), 200)
        (device,) = self.status()["devices"]
        self.assertEqual((device["device"], device["kind"]), (GPU, "cuda"))


class LargeSessionTest(StandIn):
    """Sessions whose memory takes a GPU long to clear are made beside the loop."""

    CLEAR_S = 4  # of a session: 64 MiB in eight slices
    stand_in = {"FAKE_CUDA_CLEAR_US": str(CLEAR_S * 1000000 // 8)}
    settings = (
        "limits: {arena_slots: 8, arena_slot_bytes: 8MiB}\n"
        "worker: {start_ms: 60000, heartbeat_ms: 100, hang_ms: 60000}\n"
    )

    def test_the_loop_turns_on_while_sessions_open(self):
        # What a busy machine does to a loop is far below this, what clearing on it did far above.
        late_s = self.CLEAR_S * 5 / 8
        lag, age = (f'topkd_{name}_seconds{{device="{GPU}"}}' for name in ("loop_lag", "figures_age"))
        bench = subprocess.Popen(
            [TOPKCTL, "bench", *self.url, "--shape", "4x4096x64", "--duration", "200ms", "--clients", "2"],
            stdout=subprocess.DEVNULL,
        )
        self.addCleanup(bench.wait, 120)
        self.addCleanup(bench.kill)
        began, oldest = time.monotonic(), 0
        while bench.poll() is None:
            self.assertLess(time.monotonic() - began, 120, "bench does not end")
            oldest = max(oldest, self.metrics()[age])
            time.sleep(0.1)
        self.assertEqual(bench.returncode, 0)
        self.assertGreater(time.monotonic() - began, self.CLEAR_S, "nothing was cleared")
        self.assertLess(oldest, late_s)
        self.assertLess(self.metrics()[lag], late_s)


if __name__ == "__main__":
    unittest.main()
