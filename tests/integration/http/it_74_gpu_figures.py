"""Bench, figures and readiness of a CUDA device, whose driver is the stand-in of tests/support/fake_cuda."""

import os
import unittest

from web import Daemon, ToolTest, WebTest, free_port, until

GPU = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"


class StandIn(WebTest):
    settings = "limits: {arena_slot_bytes: 65536}\nbuckets: [{rows: 64, width: 32768, k: 512}]\n"

    def setUp(self):
        ToolTest.setUp(self)
        os.environ["LD_PRELOAD"] = os.environ["STAND_IN"]
        self.addCleanup(os.environ.pop, "LD_PRELOAD")
        self.port = free_port()
        self.write_settings()
        self.daemon = Daemon(self, "--config", os.path.abspath("topkd.yaml"), "--device", GPU)
        self.url = ("--url", self.daemon.url)

    def test_bench_and_what_the_figures_say_of_graphs(self):
        shown = self.good_json(
            *("bench", *self.url, "--shape", "4x4096x64,64x32768x512", "--duration", "500ms"),
            *("--clients", 2, "--outstanding", 2),
        )
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


if __name__ == "__main__":
    unittest.main()
