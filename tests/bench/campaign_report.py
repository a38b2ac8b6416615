#!/usr/bin/env python3
"""Compares what campaign.py measured with what is wanted, in one table.

usage: campaign_report.py [--published FILE] [--markdown FILE] FOLDER
       campaign_report.py --traces CALLS.csv [--published FILE] CELLS.csv...

FOLDER holds the files of campaign.py. A figure is the mean of the passes, and the spread the
largest difference between two passes of a cell. Exit code: 0 every target is met, 1 one is missed
or was not measured, 2 usage.

--traces says what the calls of requests (bench_cpu_cells --trace 245K,430K --list) would take, for
each selector of the published figures and of CELLS.csv, by what their shapes took: see cost_at().
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable

HERE = pathlib.Path(__file__).resolve().parent
PUBLISHED = HERE / "results" / "h200-published.csv"
FLOOR_SCORES_PER_US = 4640e3 / 4  # the read floor of the GPU's benchmark, README.md

MATRIX = [(r, w << 10) for w in (128, 256, 512, 1024) for r in (512, 1024, 2048, 4096, 8192)]
DECODE = [(r, w << 10) for w in (8, 32, 128, 512, 1024) for r in (1, 4, 16, 64)]
MID = [(r, w << 10) for w in (4, 16, 64) for r in (128, 512, 2048, 8192)]
FAMILY_SHAPES = [(r, 128 << 10) for r in (1, 16, 64, 512, 2048)] + [(512, 16384), (512, 512 << 10)]
FAMILIES = "normal ties clustered const ascending descending saw tile".split()
SMALL_K = DECODE + MID + [(r, 128 << 10) for r in (512, 2048, 8192)]  # where anchors are
SMALL_K += [(r, 512 << 10) for r in (512, 2048)]

Cell = tuple[str, int, str, int, int]  # selector, k, scores, rows, width
Shape = tuple[int, int]


@dataclasses.dataclass
class Figure:
    """What the passes measured of a cell."""

    floor_us: float
    times: list[float] = dataclasses.field(default_factory=list)
    inexact: int = 0

    @property
    def us(self) -> float:
        return statistics.fmean(self.times)

    @property
    def spread(self) -> float:
        return max(self.times) / min(self.times) - 1


Figures = dict[Cell, Figure]


def rows_of(path: pathlib.Path) -> Iterable[dict[str, str]]:
    """The lines of a file; one that was cut off by a kill is left out."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if all(value not in (None, "") for value in line.values()):
                yield line


def number_or(text: str, otherwise: float) -> float:
    """A selector that failed in a cell has a word in place of its time."""
    try:
        return float(text)
    except ValueError:
        return otherwise


def read_cells(paths: Iterable[pathlib.Path]) -> Figures:
    figures: Figures = {}
    for path in paths:
        for line in rows_of(path):
            cell = (
                line["selector"],
                int(line["k"]),
                line["scores"],
                int(line["rows"]),
                int(line["width"]),
            )
            time = number_or(line["us_per_call"], 0)
            if time > 0:
                figure = figures.setdefault(cell, Figure(float(line["read_floor_us"])))
                figure.times.append(time)
                figure.inexact += int(line["inexact_rows"])
    return figures


def short(shape: Shape) -> str:
    rows, width = shape
    for size, name in ((1 << 20, "M"), (1 << 10, "K")):
        if width >= size and width % size == 0:
            return f"{rows}×{width // size}{name}"
    return f"{rows}×{width}"


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


# ---- targets -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Target:
    """A line of the table; `reached` is None when cells are missing."""

    name: str
    wanted: float
    at_most: bool
    form: str
    reached: float | None = None
    worst: str = ""
    missing: int = 0  # cells that were not measured

    @property
    def met(self) -> bool:
        if self.reached is None or self.missing:
            return False
        return self.reached <= self.wanted if self.at_most else self.reached >= self.wanted

    @property
    def missed(self) -> str:
        if self.reached is None:
            return "not measured"
        if self.missing:
            return f"{self.missing} cells not measured"
        if self.met:
            return "met"
        if self.wanted == 0:
            return f"by {self.reached:g}"
        ratio = self.reached / self.wanted if self.at_most else self.wanted / self.reached
        return f"by {(ratio - 1) * 100:.1f}%"

    def line(self) -> list[str]:
        sign = "≤" if self.at_most else "≥"
        reached = "" if self.reached is None else self.form.format(self.reached)
        return [self.name, f"{sign} {self.form.format(self.wanted)}", reached, self.worst, self.missed]


Ratios = dict[str, float]  # what was compared, and how


@dataclasses.dataclass
class Compared:
    """Cells compared with something, and how many could not be."""

    ratios: Ratios
    missing: int = 0

    def worst(self) -> tuple[float, str]:
        name = max(self.ratios, key=self.ratios.__getitem__)
        return self.ratios[name], name


def compare(
    figures: Figures,
    cells: Iterable[Cell],
    base: Callable[[Cell], float | None],
) -> Compared:
    """Time over `base` of every cell."""
    compared = Compared({})
    for cell in cells:
        _, _, scores, rows, width = cell
        under = base(cell)
        if cell not in figures or under is None:
            compared.missing += 1
            continue
        name = short((rows, width)) + ("" if scores == "indexer" else f" {scores}")
        compared.ratios[name] = figures[cell].us / under
    return compared


def worst_target(name: str, wanted: float, compared: Compared) -> Target:
    target = Target(name, wanted, True, "{:.3f}×", missing=compared.missing)
    if compared.ratios:
        target.reached, target.worst = compared.worst()
    return target


def mean_target(name: str, wanted: float, compared: Compared, inverse: bool = False) -> Target:
    """The geometric mean; `inverse`: how many times faster than the base."""
    target = Target(name, wanted, not inverse, "{:.3f}×", missing=compared.missing)
    if compared.ratios:
        mean = geometric_mean(compared.ratios.values())
        target.reached = 1 / mean if inverse else mean
        value, shape = compared.worst()
        target.worst = f"{shape} ({1 / value if inverse else value:.2f}×)"
    return target


def slower_target(name: str, compared: Compared) -> Target:
    target = Target(name, 0, True, "{:g} slower", missing=compared.missing)
    if compared.ratios:
        slower = {shape: ratio for shape, ratio in compared.ratios.items() if ratio > 1}
        target.reached = len(slower)
        target.worst = ", ".join(f"{shape} {1 / ratio:.2f}×" for shape, ratio in slower.items())
    return target


def time_target(figures: Figures, shape: Shape, wanted: float) -> Target:
    target = Target(f"{short(shape)}, us", wanted, True, "{:.1f}")
    figure = figures.get(("topkd", 2048, "indexer", *shape))
    target.reached = None if figure is None else figure.us
    return target


def default_cells(shapes: Iterable[Shape], selector: str = "topkd", k: int = 2048) -> list[Cell]:
    return [(selector, k, "indexer", rows, width) for rows, width in shapes]


def best_published(published: Figures) -> dict[tuple[int, str, int, int], float]:
    """The fastest of the selectors that got every row right, by k, scores, rows, width."""
    best: dict[tuple[int, str, int, int], float] = {}
    for (_, *key), figure in published.items():
        if figure.inexact == 0:
            known = best.get(tuple(key), math.inf)  # type: ignore[arg-type]
            best[tuple(key)] = min(known, min(figure.times))  # type: ignore[index]
    return best


def targets_of(figures: Figures, published: Figures, reads: Ratios) -> list[Target]:
    best = best_published(published)

    def floor(cell: Cell) -> float | None:
        return figures[cell].floor_us if cell in figures else None

    def anchor(cell: Cell) -> float | None:
        return best.get(cell[1:])

    def beside(selector: str, scores: str = "") -> Callable[[Cell], float | None]:
        def of(cell: Cell) -> float | None:
            other = (selector, cell[1], scores or cell[2], *cell[3:])
            return figures[other].us if other in figures else None

        return of

    matrix = compare(figures, default_cells(MATRIX), floor)
    decode = compare(figures, default_cells(DECODE), anchor)
    mid = compare(figures, default_cells(MID), anchor)
    families = compare(
        figures,
        [("topkd", 2048, name, *shape) for name in FAMILIES for shape in FAMILY_SHAPES],
        beside("topkd", "indexer"),
    )
    targets = [
        mean_target("paper's 20 shapes over the floor, mean", 1.15, matrix),
        worst_target("the same, worst shape", 1.35, matrix),
        mean_target("decode, times the best published", 1.5, decode, inverse=True),
        slower_target("decode, slower than the best published", decode),
        time_target(figures, (1, 1 << 20), 14),
        time_target(figures, (64, 1 << 20), 75),
        time_target(figures, (1, 1 << 17), 8),
        mean_target("mid, times the best published", 1.4, mid, inverse=True),
        slower_target("mid, slower than the best published", mid),
    ]
    for k in (1024, 512):
        ratios = compare(figures, default_cells(SMALL_K, k=k), anchor)
        targets.append(slower_target(f"K {k}, slower than the best published", ratios))
    targets.append(worst_target("other families over indexer rows, worst", 1.3, families))
    targets.append(worst_target("row reads, worst", 2.2, Compared(reads)))
    deterministic = compare(
        figures,
        default_cells(MATRIX + DECODE + MID, "topkd-deterministic"),
        beside("topkd"),
    )
    targets.append(worst_target("deterministic over default, worst", 1.08, deterministic))
    for name in ("float16", "bfloat16"):
        ratios = compare(figures, default_cells(MATRIX, f"topkd-{name}"), beside("topkd"))
        targets.append(worst_target(f"{name} over float32, paper's shapes, worst", 0.6, ratios))
    for name in ("values", "pages", "offsets"):
        ratios = compare(figures, default_cells(FAMILY_SHAPES, f"topkd-{name}"), beside("topkd"))
        targets.append(worst_target(f"with {name} over without, worst", 1.03, ratios))
    return targets


# ---- traces --------------------------------------------------------------------------------------

Grid = dict[int, dict[int, float]]  # width, rows: us a million valid scores


def grid_of(figures: Figures, selector: str | None) -> Grid:
    """What a score costs a selector, shape by shape; None: the best of each shape."""
    grid: Grid = {}
    for (name, k, scores, rows, width), figure in figures.items():
        if k != 2048 or scores != "indexer" or figure.inexact > 0:
            continue
        if selector in (None, name):
            cost = figure.us / (figure.floor_us * FLOOR_SCORES_PER_US) * 1e6
            line = grid.setdefault(width, {})
            line[rows] = min(cost, line.get(rows, math.inf))
    return {width: line for width, line in grid.items() if max(line) >= 512}


def between(points: dict[int, float], at: float) -> float:
    """Interpolates the logarithm of a value over the logarithm of a number; ends are kept."""
    known = sorted(points)
    low = max((x for x in known if x <= at), default=known[0])
    high = min((x for x in known if x >= at), default=known[-1])
    if low >= high:
        return points[low if at >= known[-1] else high]
    share = math.log(at / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(points[low]) + share * math.log(points[high]))


def cost_at(grid: Grid, rows: float, length: float) -> float:
    """Microseconds a million valid scores: over rows at each width, then over widths."""
    return between({width: between(line, rows) for width, line in grid.items()}, length)


@dataclasses.dataclass
class Trace:
    """The calls of one request: rows and valid scores of each, and what they took."""

    name: str
    calls: list[tuple[int, float]]
    floor_us: float = 0
    passes: list[float] = dataclasses.field(default_factory=list)

    def total_us(self, grid: Grid) -> float:
        return sum(cost_at(grid, rows, n / rows) * n / 1e6 for rows, n in self.calls)


def read_traces(path: pathlib.Path) -> list[Trace]:
    """Whole passes only: the calls of a request one after the other from its first token."""
    traces: dict[str, Trace] = {}
    calls: list[tuple[int, float]] = []
    us = floor = 0.0
    for line in rows_of(path):
        if line["selector"] != "topkd" or line["scores"] != "indexer":
            continue
        if int(line["first_token"]) == 0:
            calls, us, floor = [], 0.0, 0.0
        calls.append((int(line["rows"]), float(line["valid_scores"])))
        us += float(line["us_per_call"])
        floor += float(line["read_floor_us"])
        done = int(line["first_token"]) + int(line["rows"])
        if done == tokens_of(line["trace"]):
            trace = traces.setdefault(line["trace"], Trace(line["trace"], list(calls), floor))
            trace.passes.append(us)
    return list(traces.values())


def read_calls(path: pathlib.Path) -> list[Trace]:
    """The calls of requests, without times."""
    traces: dict[str, Trace] = {}
    for line in rows_of(path):
        trace = traces.setdefault(line["trace"], Trace(line["trace"], []))
        trace.calls.append((int(line["rows"]), float(line["valid_scores"])))
        trace.floor_us += float(line["valid_scores"]) / FLOOR_SCORES_PER_US
    return list(traces.values())


def tokens_of(text: str) -> int:
    """"245K", "1000" or "245K/32": trace_calls.h."""
    number, _, scale = text.partition("/")
    tokens = int(number[:-1]) * 1024 if number.endswith("K") else int(number)
    return tokens // int(scale or 1)


def peers_of(trace: Trace, published: Figures) -> list[tuple[float, str]]:
    """What each published selector would take, by its shapes; those that lack some are left out."""
    widths = set(grid_of(published, None))
    totals = []
    for selector in sorted({cell[0] for cell in published}):
        grid = grid_of(published, selector)
        if widths <= set(grid):
            totals.append((trace.total_us(grid), selector))
    return sorted(totals)


def trace_targets(traces: list[Trace], published: Figures) -> list[Target]:
    targets = []
    for trace in traces:
        peers = peers_of(trace, published)
        if not peers or "/" in trace.name:
            continue
        target = Target(f"trace {trace.name}, times the best peer", 1.0, False, "{:.3f}×")
        us = statistics.fmean(trace.passes)
        target.reached = peers[0][0] / us
        target.worst = (
            f"{us / 1e3:.2f} ms, floor {trace.floor_us / 1e3:.2f}; "
            f"{peers[0][1]} {peers[0][0] / 1e3:.2f}"
        )
        targets.append(target)
    return targets


def predicted(calls: pathlib.Path, cells: list[pathlib.Path], published: Figures) -> str:
    """A table: what each selector would take for each request, milliseconds."""
    figures = published | read_cells(cells)
    traces = read_calls(calls)
    lines = [["ms", *(trace.name for trace in traces)]]
    lines.append(["one read of the scores", *(f"{t.floor_us / 1e3:.1f}" for t in traces)])
    totals = [{name: us for us, name in peers_of(trace, figures)} for trace in traces]
    for name in sorted(totals[0], key=totals[0].__getitem__) if totals else []:
        lines.append([name, *(f"{total[name] / 1e3:.1f}" for total in totals)])
    return table(lines) + "\n"


# ---- variants ------------------------------------------------------------------------------------


def variants_table(figures: Figures) -> str:
    """Of each cell that was measured with several plans: the planner's, and the three fastest."""
    contests: dict[Cell, list[tuple[float, str]]] = {}
    for (selector, k, scores, rows, width), figure in figures.items():
        kind, _, plan = selector.partition("@")
        if figure.inexact == 0:
            cell = (kind, k, scores, rows, width)
            contests.setdefault(cell, []).append((figure.us, plan or "the planner's"))
    lines = [["selector", "K", "scores", "shape", "planner's, us", "fastest", "second", "third"]]
    for (kind, k, scores, *shape), plans in contests.items():
        own = next((us for us, plan in plans if plan == "the planner's"), None)
        if own is None or len(plans) < 2:
            continue
        best = [f"{plan} {us:.2f} ({us / own:.3f}×)" for us, plan in sorted(plans)[:3]]
        best += [""] * (3 - len(best))
        lines.append([kind, str(k), scores, short((shape[0], shape[1])), f"{own:.2f}", *best])
    return table(lines) if len(lines) > 1 else ""


# ---- output --------------------------------------------------------------------------------------


def table(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for number, line in enumerate(lines):
        out.append("| " + " | ".join(text.ljust(w) for text, w in zip(line, widths)) + " |")
        if number == 0:
            out.append("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(out)


def report(folder: pathlib.Path, published_path: pathlib.Path) -> tuple[str, bool]:
    """The table and what lies around it; True when every target is met."""
    routes = sorted(folder.glob("*-routes.csv"))
    paths = [path for path in sorted(folder.glob("cells-*.csv")) if path not in routes]
    figures, published = read_cells(paths), read_cells([published_path])
    reads: Ratios = {}
    for path in routes:
        for line in rows_of(path):
            shape = short((int(line["rows"]), int(line["width"])))
            name = f"{shape} {line['scores']} K {line['k']}"
            reads[name] = max(float(line["reads_of_row"]), reads.get(name, 0))
    targets = targets_of(figures, published, reads)
    targets += trace_targets(read_traces(folder / "trace.csv"), published)
    head = ["target", "wanted", "reached", "worst", "missed"]
    text = [table([head] + [target.line() for target in targets])]
    variants = variants_table(figures)
    if variants:
        text.append("\n" + variants)
    inexact = sum(figure.inexact for figure in figures.values())
    again = [(figure.spread, cell) for cell, figure in figures.items() if len(figure.times) > 1]
    text.append(f"\n{len(figures)} cells, {len(again)} of them more than once; {inexact} inexact rows.")
    if again:
        spread, cell = max(again)
        median = statistics.median(value for value, _ in again)
        text.append(
            f"Passes of a cell differ by {median * 100:.1f}% in the median,"
            f" {spread * 100:.1f}% at most ({cell[0]}, K {cell[1]}, {cell[2]}, {short(cell[3:])})."
        )
    return "\n".join(text) + "\n", inexact == 0 and all(target.met for target in targets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--published", type=pathlib.Path, default=PUBLISHED)
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table there as well")
    parser.add_argument("--traces", type=pathlib.Path, help="predict the time of these calls")
    parser.add_argument("paths", type=pathlib.Path, nargs="+", metavar="FOLDER or CELLS.csv")
    options = parser.parse_args()
    if options.traces is not None:
        sys.stdout.write(
            predicted(options.traces, options.paths, read_cells([options.published]))
        )
        return 0
    if len(options.paths) > 1 or not options.paths[0].is_dir():
        parser.error(f"{options.paths[0]} is no folder, or not the only one")
    text, met = report(options.paths[0], options.published)
    sys.stdout.write(text)
    if options.markdown is not None:
        options.markdown.write_text(text)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
