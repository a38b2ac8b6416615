#!/usr/bin/env python3
"""Draws the times of the GPU selector against the best published selector and the read floor.

usage: plot_select.py [--k K] [--rows LIST] [--png FILE] OURS.csv PUBLISHED.csv OUT.svg

Both files have the columns of bench_cuda_select's --csv. One panel for each number of rows (those
of LIST, or all) that has at least three widths; logarithmic axes; dark or light as the reader
prefers. --png has a headless Chromium draw the same picture. Exit code: 0 drawn, 1 nothing to draw
or no Chromium, 2 usage.
"""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

PANEL_W, PANEL_H, LEFT, TOP, COLUMNS = 250, 190, 56, 40, 3
GAP_X, GAP_Y, HEAD, LABEL_W = 70, 74, 66, 40

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 13px; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .back { fill: #ffffff; }
  .topkd { stroke: #0969da; fill: #0969da; }
  .published { stroke: #bc4c00; fill: #bc4c00; }
  .floor { stroke: #6e7781; fill: #6e7781; }
  polyline { fill: none !important; stroke-width: 2; }
  polyline.floor { stroke-dasharray: 5 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .grid { stroke: #30363d; }
    .back { fill: #0d1117; }
    .topkd { stroke: #58a6ff; fill: #58a6ff; }
    .published { stroke: #f0883e; fill: #f0883e; }
    .floor { stroke: #8b949e; fill: #8b949e; }
  }
"""

Series = dict[int, float]  # width -> microseconds


def read(path: pathlib.Path, k: int) -> tuple[dict[int, Series], dict[int, Series]]:
    """The best time and the floor of every shape of indexer rows, by rows, then width."""
    times: dict[int, Series] = {}
    floors: dict[int, Series] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if int(line["k"]) != k or line["scores"] != "indexer" or line["inexact_rows"] != "0":
                continue
            rows, width, time = int(line["rows"]), int(line["width"]), float(line["us_per_call"])
            if time > 0:
                known = times.setdefault(rows, {})
                known[width] = min(time, known.get(width, math.inf))
                floors.setdefault(rows, {})[width] = float(line["read_floor_us"])
    return times, floors


def short(number: float) -> str:
    """131072 as 128K."""
    for size, name in ((1 << 20, "M"), (1 << 10, "K")):
        if number >= size:
            return f"{number / size:g}{name}"
    return f"{number:g}"


class Panel:
    """One number of rows."""

    def __init__(self, x: float, y: float, series: list[tuple[str, Series]]) -> None:
        self.x, self.y, self.series = x, y, series
        widths = [w for _, s in series for w in s]
        values = [v for _, s in series for v in s.values()]
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.first, self.last = math.log2(min(widths)), math.log2(max(widths))

    def at(self, width: float, value: float) -> tuple[float, float]:
        across = (math.log2(width) - self.first) / (self.last - self.first)
        up = (math.log10(value) - self.low) / (self.high - self.low)
        return self.x + across * PANEL_W, self.y + (1 - up) * PANEL_H

    def axes(self, title: str) -> list[str]:
        out = [f'<text class="title" x="{self.x}" y="{self.y - 12}">{title}</text>']
        for power in range(self.low, self.high + 1):
            _, y = self.at(2**self.first, 10.0**power)
            out.append(
                f'<line class="grid" x1="{self.x}" x2="{self.x + PANEL_W}"'
                f' y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{self.x - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
            )
        free = math.inf  # where the label to the right begins
        for width in sorted({w for _, s in self.series for w in s}, reverse=True):
            x, _ = self.at(width, 10.0**self.low)
            out.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}"'
                f' y1="{self.y}" y2="{self.y + PANEL_H}"/>'
            )
            if x + LABEL_W / 2 <= free:
                free = x - LABEL_W / 2
                out.append(
                    f'<text x="{x:.1f}" y="{self.y + PANEL_H + 18}" text-anchor="middle">'
                    f"{short(width)}</text>"
                )
        return out

    def lines(self) -> list[str]:
        out = []
        for name, series in self.series:
            points = [self.at(w, v) for w, v in sorted(series.items())]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline class="{name}" points="{path}"/>')
            if name != "floor":
                out += [
                    f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points
                ]
        return out


def draw(ours: pathlib.Path, published: pathlib.Path, k: int, wanted: set[int]) -> str:
    """The picture as SVG text; empty without a shape to draw."""
    times, floors = read(ours, k)
    best, _ = read(published, k)
    shown = [
        rows for rows in sorted(times) if len(times[rows]) >= 3 and (not wanted or rows in wanted)
    ]
    if not shown:
        return ""
    columns = min(COLUMNS, len(shown))
    width = LEFT + columns * (PANEL_W + GAP_X)
    height = HEAD + TOP + math.ceil(len(shown) / columns) * (PANEL_H + GAP_Y) - GAP_Y // 2
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img">',
        f"<title>Microseconds a selection of K {k} against the width of a row</title>",
        f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>',
        f'<text class="title" x="{LEFT}" y="26">Microseconds a selection, K {k}, against the width'
        " of a row (scores); both axes logarithmic</text>",
    ]
    legend = (
        ("topkd", "topkd"),
        ("published", "best published selector"),
        ("floor", "one read of the scores"),
    )
    for i, (name, text) in enumerate(legend):
        x = LEFT + i * 210
        out.append(
            f'<polyline class="{name}" points="{x},46 {x + 28},46"/>'
            f'<text x="{x + 36}" y="50">{text}</text>'
        )
    for i, rows in enumerate(shown):
        series = [
            ("floor", floors[rows]),
            ("published", best.get(rows, {})),
            ("topkd", times[rows]),
        ]
        panel = Panel(
            LEFT + (i % columns) * (PANEL_W + GAP_X),
            HEAD + TOP + (i // columns) * (PANEL_H + GAP_Y),
            [(name, s) for name, s in series if s],
        )
        out += panel.axes(f"{rows} row{'s' if rows > 1 else ''}") + panel.lines()
    return "\n".join([*out, "</svg>", ""])


def draw_png(svg: pathlib.Path, png: pathlib.Path) -> bool:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("plot_select.py: no chromium to draw the PNG with", file=sys.stderr)
        return False
    head = svg.read_text().split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={head[0]},{head[1]}",
                f"--screenshot={png.resolve()}",
                svg.resolve().as_uri(),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--k", type=int, default=2048)
    parser.add_argument("--rows", default="", help="numbers, separated by commas")
    parser.add_argument("--png", type=pathlib.Path)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("published", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    wanted = {int(rows) for rows in options.rows.split(",") if rows}
    text = draw(options.ours, options.published, options.k, wanted)
    if not text:
        print(
            f"plot_select.py: {options.ours} has no three widths of K {options.k}", file=sys.stderr
        )
        return 1
    options.out.write_text(text)
    return 0 if options.png is None or draw_png(options.out, options.png) else 1


if __name__ == "__main__":
    sys.exit(main())
