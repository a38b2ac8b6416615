"""What Python adds to a selection: the same request by C and by Python, in one process and session.

usage: overhead.py [--rows N] [--width N] [--k N] [--rounds N] [--calls N] [--limit-us X]

Needs a daemon (TOPKD_URL), a C compiler and the headers of this repository. A C loop, compiled here,
and Python call topkd_select on the same client, by turns in blocks of --calls. Both read the same
shared scores; C writes to one buffer, Python gets a new array from every call. Prints the median of
each and the median of the rounds' differences; with --limit-us exits 1 when that is above.
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


def compile_loop(folder: str) -> Any:
    source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
    source.write_text(SOURCE)
    includes = [f"-I{ROOT / 'client/include'}", f"-I{ROOT / 'proto/include'}"]
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", *includes, "-o", str(library), str(source)], check=True
    )
    loop = c.CDLL(str(library)).run
    loop.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_int, c.c_void_p]
    return loop


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as folder, topkd.Client() as client:
        loop = compile_loop(folder)
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
            status = loop(select, session.handle, c.byref(request), options.calls, taken)
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
        stats = client.stats()
        assert stats["staged_bytes"] == 0
    overhead = statistics.median(differences)
    print(
        f"rows={options.rows} width={options.width} k={options.k} "
        f"calls={options.rounds * options.calls} c_p50_us={statistics.median(by_c):.1f} "
        f"python_p50_us={statistics.median(by_python):.1f} overhead_p50_us={overhead:.1f} "
        f"python={sys.version.split()[0]}"
    )
    if 0 < options.limit_us < overhead:
        print(f"the overhead is above {options.limit_us} us", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
