#!/usr/bin/env python3
"""Measures everything that the speed targets ask for, in one go, and prints the table of targets.

usage: campaign.py [--seconds S] [--passes N] [--only GROUP,...] [--cpu N] [--dry-run] BUILD_DIR FOLDER

Runs bench_cuda_select of BUILD_DIR group by group and appends a line to the files of FOLDER after
each cell. When it is stopped, by hand or because S seconds are over, the same command goes on where
it was: a cell counts as measured once it is in the file as often as there are passes. All groups
are measured once before any is measured again.

--cpu N has the CPU selector (bench_cpu_cells) measure the cells instead, with rows, widths and K
divided by N: figures of no worth, but every step is gone through. --dry-run prints the commands.
Exit code: 0 everything measured, every row exact, 1 a row was not, 2 usage or a program failed,
3 time was up.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import shlex
import subprocess
import sys
import time

from campaign_report import (
    DECODE,
    FAMILIES,
    FAMILY_SHAPES,
    MATRIX,
    MID,
    PUBLISHED,
    SMALL_K,
    Shape,
    report,
    rows_of,
)

TRACES = ("245K", "430K")
GRACE_S = 120  # choice: a cell that was begun may take this long beyond the time

Pair = tuple[int, str]  # K and family of scores


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells that one command line can measure: every K and family with every shape."""

    name: str
    shapes: list[Shape]
    ks: tuple[int, ...] = (2048,)
    scores: tuple[str, ...] = ("indexer",)
    options: tuple[str, ...] = ()

    def pairs(self) -> list[Pair]:
        return [(k, scores) for k in self.ks for scores in self.scores]


GROUPS = [
    Group("matrix", MATRIX),
    Group("decode", DECODE),
    Group("mid", MID),
    Group("small-k", SMALL_K, ks=(1024, 512)),
    Group("families", FAMILY_SHAPES, scores=("indexer", *FAMILIES)),
    # With and without one behind the other: what the machine does meanwhile is then alike.
    Group("values", FAMILY_SHAPES, options=("--outputs", "values")),
    Group("beside", FAMILY_SHAPES),
    Group("pages", FAMILY_SHAPES, options=("--outputs", "pages")),
    Group("offsets", FAMILY_SHAPES, options=("--outputs", "offsets")),
    Group("deterministic", DECODE + MID + MATRIX, options=("--deterministic",)),
    Group("float16", MATRIX, options=("--dtype", "float16")),
    Group("bfloat16", MATRIX, options=("--dtype", "bfloat16")),
]
TRACE_GROUP = "traces"
VARIANTS = "variants"  # only when asked for
VARIANT_SHAPES = [
    *((r, 8192) for r in (1, 4, 16, 64)),
    (128, 4096),
    (512, 65536),
    (128, 16384),
    (512, 16384),
    (128, 65536),
    *((r, 32768) for r in (1, 4, 16)),
    (512, 131072),
]
SWEEPS = "margin=32:48 sample_min=512:1024 sample_max=4096 snap=0:65536 prefetch=0 blocks=256:171:132"
VARIANT_GROUP = Group(
    VARIANTS,
    VARIANT_SHAPES,
    ks=(2048, 512),
    options=("--variants", *(word for sweep in SWEEPS.split() for word in ("--sweep", sweep))),
)


class TimeUp(Exception):
    """No further cell is begun."""


class Campaign:
    """One run: where it writes, what is left of its time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: pathlib.Path = options.folder
        self.scale: int = options.cpu or 1
        self.dry_run: bool = options.dry_run
        name = "bench_cpu_cells" if options.cpu else "bench_cuda_select"
        self.program = options.build / "bin" / name
        self.end = time.monotonic() + options.seconds
        self.inexact = False

    def left(self) -> float:
        return self.end - time.monotonic()

    def run(self, arguments: list[str]) -> None:
        """One command; TimeUp when it, or the time before it, came to its end."""
        left = self.left()
        if left <= 0:
            raise TimeUp
        command = [str(self.program), *arguments, "--seconds", f"{left:.0f}"]
        if self.dry_run:
            print(shlex.join(command))
            return
        code = subprocess.run(command, timeout=left + GRACE_S, check=False).returncode
        if code == 3:
            raise TimeUp
        if code not in (0, 1):
            raise RuntimeError(f"{shlex.join(command)} ended with {code}")
        self.inexact |= code == 1

    def scaled(self, number: int) -> int:
        return max(1, number // self.scale)

    def measure(self, group: Group, passes: int) -> None:
        """Whatever of a group was measured less than `passes` times, once."""
        path = self.folder / f"cells-{group.name}.csv"
        mend(path)
        done = measured(path)
        pending: dict[tuple[Pair, ...], list[Shape]] = {}
        shapes = [(self.scaled(rows), self.scaled(width)) for rows, width in group.shapes]
        for shape in dict.fromkeys(shapes):
            pairs = [(self.scaled(k), scores) for k, scores in group.pairs()]
            left = tuple(pair for pair in pairs if done[(*pair, *shape)] < passes)
            if left:
                pending.setdefault(left, []).append(shape)
        for pairs, some in pending.items():
            for ks, scores in products(pairs):
                self.run(
                    [
                        *("--shapes", ",".join(f"{rows}x{width}" for rows, width in some)),
                        *("--k", ",".join(map(str, ks)), "--scores", ",".join(scores)),
                        *("--csv", str(path)),
                        *("--routes", str(self.folder / f"cells-{group.name}-routes.csv")),
                        *group.options,
                    ]
                )

    def measure_traces(self, passes: int) -> None:
        path = self.folder / "trace.csv"
        for name in TRACES:
            trace = name if self.scale == 1 else f"{name}/{self.scale}"
            mend(path)
            whole = sum(
                line["trace"] == trace and int(line["step"]) == last_step(path, trace)
                and int(line["first_token"]) + int(line["rows"]) == int(line["width"])
                for line in rows_of(path)
            )
            if whole < passes:
                self.run(["--trace", trace, "--k", str(self.scaled(2048)), "--trace-csv", str(path)])


def mend(path: pathlib.Path) -> None:
    """Ends a line that a kill cut off, so that the next one is not joined to it."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            path.write_bytes(data[: data.rfind(b"\n") + 1])


def measured(path: pathlib.Path) -> collections.Counter[tuple[int, str, int, int]]:
    """How often each cell is in a file; of several plans the planner's own counts."""
    return collections.Counter(
        (int(line["k"]), line["scores"], int(line["rows"]), int(line["width"]))
        for line in rows_of(path)
        if "@" not in line["selector"]
    )


def last_step(path: pathlib.Path, trace: str) -> int:
    return max(int(line["step"]) for line in rows_of(path) if line["trace"] == trace)


def products(pairs: tuple[Pair, ...]) -> list[tuple[list[int], list[str]]]:
    """The pairs as products of K and families: in one where that is possible."""
    ks = sorted({k for k, _ in pairs}, reverse=True)
    scores = list(dict.fromkeys(name for _, name in pairs))
    if len(pairs) == len(ks) * len(scores):
        return [(ks, scores)]
    return [([k], [name]) for k, name in pairs]


def wanted_names(text: str) -> list[str]:
    known = [group.name for group in GROUPS] + [TRACE_GROUP, VARIANTS]
    names = text.split(",") if text else known[:-1]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no group {name!r}; there are {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--only", type=wanted_names, default=wanted_names(""), metavar="GROUP,...")
    parser.add_argument("--cpu", type=int, default=0, metavar="N")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    campaign = Campaign(options)
    if not campaign.program.exists():
        parser.error(f"{campaign.program} is not there: build it first")
    options.folder.mkdir(parents=True, exist_ok=True)
    result = 0
    try:
        for passes in range(1, options.passes + 1):
            for group in [*GROUPS, VARIANT_GROUP]:
                if group.name in options.only:
                    campaign.measure(group, passes)
            if TRACE_GROUP in options.only:
                campaign.measure_traces(passes)
    except TimeUp:
        print(f"campaign.py: the time is up; run it again to go on in {options.folder}")
        result = 3
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"campaign.py: {error}", file=sys.stderr)
        return 2
    if not options.dry_run:
        print(report(options.folder, PUBLISHED)[0], end="")
    return 1 if campaign.inexact else result


if __name__ == "__main__":
    sys.exit(main())
