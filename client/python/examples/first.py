"""The smallest program: scores in, positions out. NumPy and the CPU device, no GPU needed.

    TOPKD_URL=ipc:///tmp/my-topkd/topkd.sock python first.py
"""

from __future__ import annotations

import numpy as np

import topkd


def main() -> None:
    with topkd.Client(device="cpu") as client:
        scores = client.empty((4, 100_000))  # float32 that the daemon reads in place
        scores[:] = np.random.default_rng(1).standard_normal(scores.shape)
        indices, values = client.select(scores, k=5, order="value", values=True)
        for row in range(4):
            print(f"row {row}: {indices[row].tolist()} {values[row].round(3).tolist()}")
        # The same in this process, without the daemon.
        assert (topkd.select(scores, k=5, order="value", ties="lowest") == indices).all()


if __name__ == "__main__":
    main()
