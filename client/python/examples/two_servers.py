"""Two server processes share one daemon: each runs an indexer, selects, gathers.

    python two_servers.py [--device cuda|cpu] [--rows N] [--tokens N] [--k N] [--steps N]

Needs PyTorch and a daemon (TOPKD_URL) with such a device. Every step is compared with torch.topk.
Prints the latency of a selection for each process: on a GPU from a CUDA event before it to one after
it, on the CPU device the time of the call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

import topkd
from indexer import Indexer, check_exact


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=50)
    return parser.parse_args()


def serve(number: int, options: argparse.Namespace, said: Any) -> None:
    """One server: its own client, its own cache."""
    with topkd.Client(device=None if options.device == "cuda" else "cpu") as client:
        indexer = Indexer(options.rows, options.tokens, options.device, seed=number)
        if options.device == "cuda":
            scores = torch.empty(options.rows, options.tokens, device="cuda")
        else:
            scores = client.empty((options.rows, options.tokens), framework="torch")
        lengths = torch.full(
            (options.rows,), options.tokens, dtype=torch.int32, device=options.device
        )
        lengths[0] = 5  # a request that has just begun
        times = []
        for step in range(options.steps):
            times.append(one_step(client, indexer, scores, lengths, options.k))
            lengths.sub_(step % 3)
        client_stats = client.stats()
    times.sort()
    said.put(
        f"server {number}: {options.steps} steps exact, rows={options.rows} "
        f"tokens={options.tokens} k={options.k} p50_us={statistics.median(times):.0f} "
        f"p99_us={times[int(len(times) * 0.99)]:.0f} "
        f"registrations={client_stats['registrations']}"
    )


def one_step(client: topkd.Client, indexer: Indexer, scores: Any, lengths: Any, k: int) -> float:
    """Indexer, selection, gather; returns the selection's microseconds."""
    indexer.scores(indexer.hidden(), scores)
    if not client.is_cuda:
        begin = time.perf_counter()
        indices = client.select(scores, lengths, k)
        taken = (time.perf_counter() - begin) * 1e6
    else:
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        indices = client.select(scores, lengths, k)  # in the stream's order: nothing waits
        after.record()
    chosen = indexer.gather(indices)
    assert chosen.shape == (scores.shape[0], k, chosen.shape[2])
    check_exact(scores, indices, lengths, k)  # waits for the GPU
    if client.is_cuda:
        client.check()
        taken = before.elapsed_time(after) * 1e3
    return taken


def main() -> int:
    options = parse()
    context = multiprocessing.get_context("spawn")  # a client does not survive a fork
    said = context.Queue()
    servers = [
        context.Process(target=serve, args=(number, options, said)) for number in (1, 2)
    ]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    for server in servers:
        if server.exitcode == 0:
            print(said.get(timeout=10))
    return 0 if all(server.exitcode == 0 for server in servers) else 1


if __name__ == "__main__":
    sys.exit(main())
