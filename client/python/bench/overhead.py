"""What Python adds to a selection: the same request by C and by Python, in one process and session.

usage: overhead.py [--rows N] [--width N] [--k N] [--rounds N] [--calls N] [--limit-us X]

Needs a daemon (TOPKD_URL), a C compiler and the headers of this repository. A C loop, compiled here,
and Python call topkd_select on the same client, by turns in blocks of --calls. Both read the same
shared scores; C writes to one buffer, Python gets a new array from every call. Prints the median of
each and the median of the rounds' differences; with --limit-us exits 1 when that is above.

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

typedef enum topkd_status (*select_fn)(struct topkd_client *, const struct topkd_select_request *,
                                       struct topkd_result *);

int nothing(void *client, void *request, void *result)
{
    return client == request || result == request;
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
        us[i] = (double)(end.tv_sec - begin.tv_sec) * 1e6 +
                (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
    }
    return 0;
}
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
    return made


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as folder, topkd.Client() as client:
        made = compile_loop(folder)
        scores = client.empty((options.rows, options.width))
        rng = np.random.default_rng(1)
        scores[:] = rng.standard_normal(scores.shape, dtype=np.float32)
        out = client.empty((options.rows, options.k), "int32")
        session = client._session
        request = _abi.SelectRequest(rows=options.rows, width=options.width, k=options.k)
        for tensor, array in ((request.scores, scores), (request.indices, out)):
            buffer = session.pool.find(array.ctypes.data)
            assert buffer is not None
            tensor.region = buffer.region
        by_c: list[float] = []
        by_python: list[float] = []
        differences = []
        select = c.cast(session.library.topkd_select, c.c_void_p)
        for turn in range(options.rounds + 1):
            taken = (c.c_double * options.calls)()
            status = made.run(select, session.handle, c.byref(request), options.calls, taken)
            if status != 0:
                raise topkd.errors.from_status(status)
            mine = []
            for _ in range(options.calls):
                begin = time.perf_counter_ns()
                client.select(scores, k=options.k)
                mine.append((time.perf_counter_ns() - begin) / 1e3)
            if turn > 0:  # the first warms up
                by_c += taken
                by_python += mine
                differences.append(statistics.median(mine) - statistics.median(taken))
        assert client.stats()["staged_bytes"] == 0
        alone = python_alone(client, scores, options.k, made.nothing)
    overhead = statistics.median(differences)
    print(
        f"rows={options.rows} width={options.width} k={options.k} "
        f"calls={options.rounds * options.calls} c_p50_us={statistics.median(by_c):.1f} "
        f"python_p50_us={statistics.median(by_python):.1f} overhead_p50_us={overhead:.1f} "
        f"python_alone_us={alone:.2f} "
        f"python={sys.version.split()[0]}"
    )
    if 0 < options.limit_us < overhead:
        print(f"the overhead is above {options.limit_us} us", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
