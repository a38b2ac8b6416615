"""A CUDA graph of indexer, selection and gather, captured once and replayed.

    python graph.py [--rows N] [--tokens N] [--k N] [--steps N]

Needs PyTorch, a GPU and a daemon (TOPKD_URL) that serves it; with MPS a step is fast, without it
processes take turns. Every replay is compared with torch.topk. Prints the time of a replay, and of a
replay of the same graph without the selection.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch

import topkd
from indexer import Indexer, check_exact


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


def capture(step: Any) -> Any:
    """Runs a step a few times as it is, so that all of its kernels are loaded, then captures it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def microseconds(graph: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def main() -> int:
    options = parse()
    with topkd.Client() as client:
        indexer = Indexer(options.rows, options.tokens, "cuda", seed=1)
        hidden = indexer.hidden()
        scores = torch.empty(options.rows, options.tokens, device="cuda")
        lengths = torch.full((options.rows,), options.tokens, dtype=torch.int32, device="cuda")
        with client.lane(scores, lengths, options.k) as lane:

            def step() -> Any:
                indexer.scores(hidden, scores)
                return indexer.gather(lane())

            def step_without() -> Any:
                indexer.scores(hidden, scores)
                return indexer.gather(lane.indices)

            graph, chosen = capture(step)
            without, _ = capture(step_without)
            times = []
            for number in range(options.steps):
                hidden.copy_(indexer.hidden())  # another query, and caches that grow
                lengths.fill_(options.tokens - options.steps + number)
                times.append(microseconds(graph))
                lane.check()
                check_exact(scores, lane.indices, lengths, options.k)
                assert torch.equal(chosen, indexer.gather(lane.indices))
            alone = [microseconds(without) for _ in range(options.steps)]
    print(
        f"{options.steps} replays exact, rows={options.rows} tokens={options.tokens} "
        f"k={options.k} replay_p50_us={statistics.median(times):.1f} "
        f"without_selection_p50_us={statistics.median(alone):.1f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
