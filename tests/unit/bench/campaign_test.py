#!/usr/bin/env python3
"""The campaign with the CPU selector in place of a GPU, and what its report computes.

usage: campaign_test.py BUILD_DIR
"""

from __future__ import annotations

import csv
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import campaign  # noqa: E402
import campaign_report as report  # noqa: E402

RESULTS = BENCH / "results"
SCALE = "512"  # of rows, widths and K: a campaign takes a second or two
build = pathlib.Path()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "campaign.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def calls_of(traces: str) -> str:
    command = [build / "bin" / "bench_cpu_cells", "--trace", traces, "--list"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def lines_of(folder: pathlib.Path) -> dict[str, int]:
    return {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.csv")}


class Running(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name) / "out"

    def test_one_command_measures_all_and_goes_on_after_a_stop(self) -> None:
        common = ("--cpu", SCALE, "--passes", "2", str(build), str(self.folder))
        stopped = run("--seconds", "0", *common)
        self.assertEqual(stopped.returncode, 3, stopped.stderr)
        self.assertIn("run it again", stopped.stdout)
        whole = run(*common)
        self.assertEqual(whole.returncode, 0, whole.stdout + whole.stderr)
        done = lines_of(self.folder)
        for group in campaign.GROUPS:
            shapes = {(max(1, r // 512), max(1, w // 512)) for r, w in group.shapes}
            pairs = {(max(1, k // 512), scores) for k, scores in group.pairs()}
            cells = 1 + 2 * len(shapes) * len(pairs)
            self.assertEqual(done[f"cells-{group.name}.csv"], cells, group.name)
            self.assertEqual(done[f"cells-{group.name}-routes.csv"], cells, group.name)
        self.assertGreater(done["trace.csv"], 2 * (26 + 71))

        # A line that was cut off is measured again, the others are not.
        path = self.folder / "cells-mid.csv"
        path.write_text(path.read_text()[:-4])
        self.assertEqual(run(*common).returncode, 0)
        self.assertEqual(lines_of(self.folder)["cells-mid.csv"], done["cells-mid.csv"])
        self.assertEqual(run(*common).returncode, 0)
        again = lines_of(self.folder)
        for lines in (again, done):
            lines.pop("cells-mid-routes.csv")  # has the line that was cut off twice
        self.assertEqual(again, done)

    def test_a_dry_run_names_the_commands_and_writes_nothing(self) -> None:
        printed = run("--cpu", "1", "--dry-run", str(build), str(self.folder))
        self.assertEqual(printed.returncode, 0, printed.stderr)
        commands = printed.stdout.splitlines()
        self.assertEqual(len(commands), 2 * (len(campaign.GROUPS) + len(campaign.TRACES)))
        self.assertIn("512x131072", commands[0])
        self.assertEqual(sum("--trace 430K" in line for line in commands), 2)
        self.assertEqual(list(self.folder.glob("*")), [])

    def test_what_is_wrong_is_refused(self) -> None:
        for arguments in (["--only", "nothing"], ["--passes", "many"]):
            refused = run(*arguments, str(build), str(self.folder))
            self.assertEqual(refused.returncode, 2)
        missing = run(str(self.folder), str(self.folder))
        self.assertEqual(missing.returncode, 2)
        self.assertIn("build it first", missing.stderr)

    def test_a_program_that_fails_is_an_error(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        program = programs / "bench_cuda_select"
        program.write_text("#!/bin/sh\nexit 2\n")
        program.chmod(0o755)
        failed = run("--only", "mid", str(self.folder), str(self.folder / "out"))
        self.assertEqual(failed.returncode, 2)
        self.assertIn("ended with 2", failed.stderr)


class Reporting(unittest.TestCase):
    published = report.read_cells([report.PUBLISHED])

    def targets(self, figures: report.Figures) -> dict[str, report.Target]:
        return {t.name: t for t in report.targets_of(figures, self.published, {})}

    def test_the_committed_figures_are_read(self) -> None:
        targets = self.targets(report.read_cells([RESULTS / "h200-select.csv"]))
        mean = targets["paper's 20 shapes over the floor, mean"]
        self.assertIsNotNone(mean.reached)
        self.assertEqual(mean.missing, 0)
        self.assertGreater(mean.reached, 1.0)
        deterministic = targets["deterministic over default, worst"]
        self.assertEqual(deterministic.missing, 52)
        self.assertFalse(deterministic.met)
        self.assertEqual(deterministic.missed, "not measured")

    def test_figures_made_up_to_meet_and_to_miss(self) -> None:
        figures: report.Figures = {}
        for shape in report.MATRIX:
            figures["topkd", 2048, "indexer", *shape] = report.Figure(100.0, [110.0, 112.0])
        mean = self.targets(figures)["paper's 20 shapes over the floor, mean"]
        self.assertAlmostEqual(mean.reached, 1.11)
        self.assertTrue(mean.met)
        figures["topkd", 2048, "indexer", 512, 1 << 20].times = [200.0]
        worst = self.targets(figures)["the same, worst shape"]
        self.assertAlmostEqual(worst.reached, 2.0)
        self.assertEqual(worst.worst, "512×1M")
        self.assertEqual(worst.missed, "by 48.1%")
        del figures["topkd", 2048, "indexer", 512, 1 << 20]
        mean = self.targets(figures)["paper's 20 shapes over the floor, mean"]
        self.assertFalse(mean.met)
        self.assertEqual(mean.missed, "1 cells not measured")

    def test_a_target_of_none_slower(self) -> None:
        best = report.best_published(self.published)
        figures: report.Figures = {}
        for shape in report.DECODE:
            time = best[2048, "indexer", *shape] * 0.5
            figures["topkd", 2048, "indexer", *shape] = report.Figure(1.0, [time])
        target = self.targets(figures)["decode, slower than the best published"]
        self.assertTrue(target.met)
        figures["topkd", 2048, "indexer", 64, 8192].times = [1e6]
        target = self.targets(figures)["decode, slower than the best published"]
        self.assertEqual(target.reached, 1)
        self.assertIn("64×8K", target.worst)

    def test_selectors_that_failed_or_were_wrong_are_no_anchor(self) -> None:
        head = "k,scores,rows,width,read_floor_us,selector,us_per_call,inexact_rows\n"
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "cells.csv"
            path.write_text(
                head
                + "2048,indexer,1,8192,1,right,7.0,0\n"
                + "2048,indexer,1,8192,1,wrong,3.0,2\n"
                + "2048,indexer,1,8192,1,broken,fault,0\n"
                + "2048,indexer,1,81"
            )
            best = report.best_published(report.read_cells([path]))
        self.assertEqual(best, {(2048, "indexer", 1, 8192): 7.0})


class Variants(unittest.TestCase):
    def test_the_fastest_plans_of_a_cell(self) -> None:
        figures: report.Figures = {}
        for name, us in (("", 10.0), ("@row:3", 9.0), ("@margin=48", 11.0), ("@row:5", 8.0)):
            figures["topkd" + name, 512, "indexer", 64, 8192] = report.Figure(1.0, [us])
        figures["topkd@row:6", 512, "indexer", 64, 8192] = report.Figure(1.0, [1.0], inexact=1)
        figures["topkd", 512, "indexer", 1, 8192] = report.Figure(1.0, [5.0])
        head, _, line = report.variants_table(figures).splitlines()
        self.assertIn("fastest", head)
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        self.assertEqual(cells[:4], ["topkd", "512", "indexer", "64×8K"])
        self.assertEqual(cells[4:6], ["10.00", "row:5 8.00 (0.800×)"])
        self.assertIn("row:3", cells[6])
        self.assertIn("the planner's 10.00 (1.000×)", cells[7])
        self.assertEqual(report.variants_table({}), "")

    def test_kinds_of_selections_are_not_mixed(self) -> None:
        cell = (2048, "indexer", 64, 8192)
        figures: report.Figures = {
            ("topkd", *cell): report.Figure(1.0, [10.0]),
            ("topkd-float16", *cell): report.Figure(1.0, [6.0]),
            ("topkd-deterministic", *cell): report.Figure(1.0, [11.0]),
        }
        self.assertEqual(report.variants_table(figures), "")
        figures["topkd-float16@row:3", *cell] = report.Figure(1.0, [5.0])
        [_, _, line] = report.variants_table(figures).splitlines()
        cells = [text.strip() for text in line.split("|")[1:-1]]
        self.assertEqual(cells[0], "topkd-float16")
        self.assertEqual(cells[4:6], ["6.00", "row:3 5.00 (0.833×)"])


class Traces(unittest.TestCase):
    def test_costs_between_shapes(self) -> None:
        grid = {1024: {512: 8.0, 2048: 2.0}, 4096: {512: 2.0, 2048: 2.0}}
        self.assertAlmostEqual(report.cost_at(grid, 512, 1024), 8)
        self.assertAlmostEqual(report.cost_at(grid, 1024, 1024), 4)
        self.assertAlmostEqual(report.cost_at(grid, 512, 2048), 4)
        self.assertAlmostEqual(report.cost_at(grid, 1, 1), 8)  # ends are kept
        self.assertAlmostEqual(report.cost_at(grid, 1 << 20, 1 << 20), 2)

    def test_a_selector_at_the_floor_takes_the_floor(self) -> None:
        figures: report.Figures = {}
        for shape in report.MATRIX + report.MID:
            figures["ideal", 2048, "indexer", *shape] = report.Figure(50.0, [50.0])
        trace = report.Trace("245K", [(1000, 1e6), (2000, 3e8)], 3.01e8 / report.FLOOR_SCORES_PER_US)
        [(us, name)] = report.peers_of(trace, figures)
        self.assertEqual(name, "ideal")
        self.assertAlmostEqual(us, trace.floor_us)

    def test_only_whole_passes_count(self) -> None:
        listed = calls_of("1000/2")
        calls = list(csv.DictReader(io.StringIO(listed)))
        self.assertEqual(sum(int(call["rows"]) for call in calls), 500)
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "trace.csv"
            with path.open("w", newline="") as file:
                fields = [*calls[0], "scores", "selector", "read_floor_us", "us_per_call"]
                writer = csv.DictWriter(file, fields)
                writer.writeheader()
                for us in (5.0, 7.0):
                    for call in calls:
                        writer.writerow({**call, "scores": "indexer", "selector": "topkd",
                                         "read_floor_us": 1.0, "us_per_call": us})
                half = {**calls[0], "rows": "1", "scores": "indexer", "selector": "topkd"}
                writer.writerow({**half, "read_floor_us": 1.0, "us_per_call": 9.0})
            [trace] = report.read_traces(path)
        self.assertEqual(trace.passes, [5.0 * len(calls), 7.0 * len(calls)])

    def test_the_published_selectors_are_predicted_in_the_papers_order(self) -> None:
        listed = calls_of("245K,430K")
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "calls.csv"
            path.write_text(listed)
            small, large = report.read_calls(path)
        published = report.read_cells([report.PUBLISHED])
        for trace, paper in ((small, 1.36), (large, 1.48)):
            peers = {name: us for us, name in report.peers_of(trace, published)}
            ratio = peers["sglang-v2"] / peers["hpc-ops"]
            self.assertEqual(min(peers, key=peers.__getitem__), "hpc-ops")
            self.assertLess(abs(ratio / paper - 1), 0.1)  # on another GPU


if __name__ == "__main__":
    build = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=0)
