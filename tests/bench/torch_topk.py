#!/usr/bin/env python3
"""Times PyTorch's CPU topk on scores that bench_cpu_select --save wrote, by the same method.

Prints one line of the CSV that cpu_select.sh collects. Needs PyTorch and NumPy, and nothing of this
project: it only says how the selector compares."""

import argparse
import statistics
import sys
import time

try:
    import numpy
    import torch
except ImportError as error:
    sys.exit(f"torch_topk.py: {error}; install PyTorch and NumPy for this Python, "
             "or leave the comparison out")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scores", help=".npy file of float32 [rows, width]")
    parser.add_argument("--family", default="indexer", help="name for the report (indexer)")
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11, help="timed calls a repeat (11)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the best counts (3)")
    parser.add_argument("--rotate-mb", type=int, default=256, help="copies used in turn (256)")
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    scores = torch.from_numpy(numpy.load(options.scores))
    rows, width = scores.shape
    num_copies = options.rotate_mb * 2**20 // (scores.numel() * 4) + 1
    copies = [scores.clone() for _ in range(num_copies)]
    medians = []
    for _ in range(options.repeats):
        times = []
        for i in range(options.rounds + 1):
            begin = time.perf_counter()
            torch.topk(copies[i % num_copies], options.k, dim=1, largest=True, sorted=False)
            times.append((time.perf_counter() - begin) * 1e6)
        medians.append(statistics.median(times[1:]))  # the first warms up
    print(f"{options.family},torch-{torch.__version__},{options.threads},{rows},{width},"
          f"{options.k},full,any,any,{min(medians):.1f},,,,,,,,,yes,float32")


if __name__ == "__main__":
    main()
