"""What Python adds to a selection: the same request by C and by Python, in one process and session.

usage: overhead.py [--cuda [--out]] [--rows N] [--width N] [--k N] [--rounds N] [--calls N] [--limit-us X]

Needs a daemon (TOPKD_URL), a C compiler and the headers of this repository. A C loop, compiled here,
and Python call topkd_select on the same client, by turns in blocks of --calls. Both read the same
shared scores; C writes to one buffer, Python gets a new array from every call. Prints the median of
each and the median of the rounds' differences; with --limit-us exits 1 when that is above.

With --cuda the scores are a PyTorch tensor on the GPU and both enqueue in the current stream: C by
topkd_select_stream and topkd_op_finish, into one tensor; Python gets a new one, or with --out writes
to one too. A call's time is the host's; between calls, not timed, the selection is waited for.

python_alone_us is the processor time of Python's own way with warm caches: the least of 40 rounds of
2000 calls in which a function that returns at once stands for topkd_select. It hardly depends on what
else the machine does, so it tells whether a change of the package made that way shorter.
"""

from __future__ import annotations

import argparse
import ctypes as c
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import topkd
from topkd import _abi

ROOT = Path(__file__).parents[3]
SOURCE = r"""
#include "topkd.h"
#include <time.h>

typedef enum topkd_status (*stream_fn)(struct topkd_client *, const struct topkd_select_request *,
                                       void *, struct topkd_op **);
typedef enum topkd_status (*wait_fn)(struct topkd_op *, uint32_t);
typedef enum topkd_status (*finish_fn)(struct topkd_op *, struct topkd_result *);
typedef enum topkd_status (*select_fn)(struct topkd_client *, const struct topkd_select_request *,
                                       struct topkd_result *);

int nothing(void *client, void *request, void *result)
{
    return client == request || result == request;
}

static double us_between(struct timespec begin, struct timespec end)
{
    return (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
}

int run(select_fn select, struct topkd_client *client, const struct topkd_select_request *request,
        int num, double *us)
{
    for (int i = 0; i < num; i++) {
        struct timespec begin, end;
        struct topkd_result result;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        enum topkd_status status = select(client, request, &result);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (status != TOPKD_OK)
            return (int)status;
        us[i] = us_between(begin, end);
    }
    return 0;
}

/* Enqueues and finishes; what lies between, the selection itself, does not count. */
int run_stream(stream_fn select, wait_fn wait, finish_fn finish, struct topkd_client *client,
               const struct topkd_select_request *request, void *stream, int num, double *us)
{
    for (int i = 0; i < num; i++) {
        struct timespec begin, enqueued, done, end;
        struct topkd_op *op;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        enum topkd_status status = select(client, request, stream, &op);
        clock_gettime(CLOCK_MONOTONIC, &enqueued);
        if (status == TOPKD_OK)
            status = wait(op, 10000);
        if (status != TOPKD_OK)
            return (int)status;
        clock_gettime(CLOCK_MONOTONIC, &done);
        status = finish(op, 0);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (status != TOPKD_OK)
            return (int)status;
        us[i] = us_between(begin, enqueued) + us_between(done, end);
    }
    return 0;
}
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="a PyTorch tensor on the GPU")
    parser.add_argument("--out", action="store_true", help="Python gets no new tensor")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--width", type=int, default=16384)
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200, help="of each in a round")
    parser.add_argument("--limit-us", type=float, default=0.0)
    return parser.parse_args()


class Standing:
    """libtopkd with another function in place of topkd_select."""

    def __init__(self, library: Any, select: Any) -> None:
        self._library = library
        self._select = select

    def __getitem__(self, name: str) -> Any:
        return self._select if name == "topkd_select" else self._library[name]

    def __getattr__(self, name: str) -> Any:
        return self._select if name == "topkd_select" else getattr(self._library, name)


def python_alone(client: topkd.Client, scores: Any, k: int, nothing: Any) -> float:
    """Processor time of a call in microseconds."""
    session = client._session
    library = session.library
    standing: Any = Standing(library, nothing)
    session.library = standing
    client._recent.clear()  # it has the other function at hand
    best = float("inf")
    try:
        for _ in range(40):
            begin = time.thread_time_ns()
            for _ in range(2000):
                client.select(scores, k=k)
            best = min(best, (time.thread_time_ns() - begin) / 2000)
    finally:
        session.library = library
        client._recent.clear()
    return best / 1e3


def compile_loop(folder: str) -> Any:
    source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
    source.write_text(SOURCE)
    includes = [f"-I{ROOT / 'client/include'}", f"-I{ROOT / 'proto/include'}"]
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", *includes, "-o", str(library), str(source)], check=True
    )
    made = c.CDLL(str(library))
    made.run.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_int, c.c_void_p]
    made.run_stream.argtypes = [c.c_void_p] * 6 + [c.c_int, c.c_void_p]
    return made


class HostPair:
    """Shared scores of the CPU device: C writes to one buffer, Python to a new one each time."""

    def __init__(self, client: topkd.Client, made: Any, options: argparse.Namespace) -> None:
        self._client, self._made, self._k = client, made, options.k
        self.scores = scores = client.empty((options.rows, options.width))
        scores[:] = np.random.default_rng(1).standard_normal(scores.shape, dtype=np.float32)
        self._out = client.empty((options.rows, options.k), "int32")
        self._request = _abi.SelectRequest(rows=options.rows, width=options.width, k=options.k)
        pairs = ((self._request.scores, scores), (self._request.indices, self._out))
        for tensor, array in pairs:
            buffer = client._session.pool.find(array.ctypes.data)
            assert buffer is not None
            tensor.region = buffer.region

    def c(self, num: int, taken: Any) -> int:
        session = self._client._session
        select = c.cast(session.library.topkd_select, c.c_void_p)
        return int(self._made.run(select, session.handle, c.byref(self._request), num, taken))

    def python(self) -> None:
        self._client.select(self.scores, k=self._k)

    def settle(self) -> None:
        pass

    def alone(self) -> str:
        us = python_alone(self._client, self.scores, self._k, self._made.nothing)
        assert self._client.stats()["staged_bytes"] == 0
        return f"python_alone_us={us:.2f} "


class StreamPair:
    """A tensor of PyTorch: both enqueue in its current stream."""

    def __init__(self, client: topkd.Client, made: Any, options: argparse.Namespace) -> None:
        import torch

        self._client, self._made, self._k = client, made, options.k
        self.scores = torch.randn(options.rows, options.width, device="cuda")
        self._out = None
        if options.out:
            self._out = torch.empty(options.rows, options.k, dtype=torch.int32, device="cuda")
        self.python()  # registers the memory
        self.settle = client.synchronize
        self.settle()
        # The request as Python makes it; its call, which holds the tensors, stays open.
        self._call, self._results = client._selections.prepare(
            self.scores, None, options.k, "any", "any", False, False, None, None, None, None, None, None
        )

    def c(self, num: int, taken: Any) -> int:
        self._client.synchronize()
        session, call = self._client._session, self._call
        functions = [
            c.cast(session.library[f"topkd_{name}"], c.c_void_p)
            for name in ("select_stream", "op_wait", "op_finish")
        ]
        return int(
            self._made.run_stream(
                *functions, session.handle, c.byref(call.request), call.stream, num, taken
            )
        )

    def python(self) -> None:
        self._client.select(self.scores, k=self._k, out=self._out)

    def alone(self) -> str:
        return ""


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as folder, topkd.Client() as client:
        made = compile_loop(folder)
        pair: Any = (StreamPair if options.cuda else HostPair)(client, made, options)
        by_c: list[float] = []
        by_python: list[float] = []
        differences = []
        for turn in range(options.rounds + 1):
            taken = (c.c_double * options.calls)()
            status = pair.c(options.calls, taken)
            if status != 0:
                raise topkd.errors.from_status(status)
            mine = []
            for _ in range(options.calls):
                begin = time.perf_counter_ns()
                pair.python()
                mine.append((time.perf_counter_ns() - begin) / 1e3)
                pair.settle()
            if turn > 0:  # the first warms up
                by_c += taken
                by_python += mine
                differences.append(statistics.median(mine) - statistics.median(taken))
        alone = pair.alone()
    overhead = statistics.median(differences)
    print(
        f"{'cuda ' if options.cuda else ''}{'out ' if options.out else ''}rows={options.rows} width={options.width} k={options.k} "
        f"calls={options.rounds * options.calls} c_p50_us={statistics.median(by_c):.1f} "
        f"python_p50_us={statistics.median(by_python):.1f} overhead_p50_us={overhead:.1f} "
        f"{alone}python={sys.version.split()[0]}"
    )
    if 0 < options.limit_us < overhead:
        print(f"the overhead is above {options.limit_us} us", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
