"""Prometheus' own tool finds nothing to say about the metrics."""

import os
import subprocess
import unittest

import numpy as np
from web import WebTest, until


class Promtool(WebTest):
    def test_metrics_are_good_for_prometheus(self):
        np.save("scores.npy", np.random.default_rng(3).standard_normal((7, 40000), np.float32))
        self.good("select", "scores.npy", "-k", 16, *self.url)
        until(lambda: self.metrics()['topkd_requests_total{device="cpu",code="ok"}'] == 1, "one")
        text = self.get("/metrics")[1]
        command = [os.environ["PROMTOOL"], "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, b""))
        wrong = text.replace(b"# TYPE topkd_sessions gauge", b"# TYPE topkd_sessions counter")
        done = subprocess.run(command, input=wrong, capture_output=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)  # it does look


if __name__ == "__main__":
    unittest.main()
