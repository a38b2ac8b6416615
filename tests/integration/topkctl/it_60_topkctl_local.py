"""topkctl select --local: right positions for every option, and a named refusal for every bad file."""

import json
import os
import pty
import signal
import subprocess
import time
import unittest
from pathlib import Path

import numpy as np
from tool import TOPKCTL, ToolTest, reference, run, values_of


def make_scores(rows, width, seed=1):
    """Scores with ties at every boundary, both zeros, infinities and NaN."""
    random = np.random.default_rng(seed)
    scores = (random.integers(-40, 40, (rows, width)) / 8).astype(np.float32)
    scores[random.random((rows, width)) < 0.02] = np.nan
    scores[random.random((rows, width)) < 0.02] = -np.inf
    scores[random.random((rows, width)) < 0.01] = np.inf
    scores[random.random((rows, width)) < 0.05] = -0.0
    return scores


def save_sparse(name, rows, width):
    """A matrix of zeros that takes no room on the disk."""
    with open(name, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * width * 4)


class Positions(ToolTest):
    def setUp(self):
        super().setUp()
        self.scores = make_scores(37, 500)
        self.lengths = np.random.default_rng(2).integers(-3, 520, 37).astype(np.int32)
        np.save("scores.npy", self.scores)
        np.save("lengths.npy", self.lengths)

    def select(self, k, *options):
        self.good("select", "scores.npy", "-k", k, "--local", "--verify", "--out", "out.npy", *options)
        return np.load("out.npy")

    def test_every_order_and_kind_of_ties(self):
        for k in (1, 7, 64, 499, 500, 501, 2049):
            for order in ("index", "value"):
                expected = reference(self.scores, self.lengths, k, order)
                found = self.select(
                    k, "--lengths", "lengths.npy", "--order", order, "--ties", "lowest"
                )
                np.testing.assert_array_equal(found, expected, f"k {k} order {order}")
            best = values_of(self.scores, reference(self.scores, self.lengths, k, "value"))
            for order in ("any", "index", "value"):
                found = self.select(k, "--lengths", "lengths.npy", "--order", order)
                values = values_of(self.scores, found).view(np.float32)
                wanted = np.sort(best.view(np.float32), axis=1)
                np.testing.assert_array_equal(np.sort(values, axis=1), wanted, f"k {k} {order}")

    def test_without_lengths_every_score_is_valid(self):
        full = np.full(37, 500)
        found = self.select(9, "--deterministic")
        np.testing.assert_array_equal(found, reference(self.scores, full, 9))

    def test_deterministic_gives_the_same_bytes_with_any_number_of_threads(self):
        results = [self.select(100, "--deterministic", "--threads", n).tobytes() for n in (1, 2, 5)]
        self.assertEqual(len(set(results)), 1)

    def test_values_have_the_bits_of_the_scores(self):
        found = self.select(40, "--lengths", "lengths.npy", "--values", "values.npy")
        values = np.load("values.npy")
        self.assertEqual(values.dtype, np.float32)
        np.testing.assert_array_equal(values.view(np.uint32), values_of(self.scores, found))

    def test_pages_and_offsets(self):
        random = np.random.default_rng(3)
        pages = np.stack([random.permutation(1000)[:40] for _ in range(37)]).astype(np.int32)
        offsets = random.integers(-100000, 100000, 37).astype(np.int32)
        np.save("pages.npy", pages)
        np.save("offsets.npy", offsets)
        found = self.select(
            50, "--lengths", "lengths.npy", "--deterministic", "--page-table", "pages.npy",
            "--page-size", 16, "--row-offsets", "offsets.npy",
        )  # fmt: skip
        plain = reference(self.scores, self.lengths, 50)
        moved = np.take_along_axis(pages, np.maximum(plain, 0) // 16, axis=1) * 16 + plain % 16
        expected = np.where(plain < 0, -1, moved + offsets[:, None])
        np.testing.assert_array_equal(found, expected)

    def test_scores_of_16_bits(self):
        halves = self.scores.astype(np.float16)
        np.save("scores.npy", halves)
        numbers = halves.astype(np.float32)
        for order in ("index", "value"):
            found = self.select(9, "--order", order, "--ties", "lowest", "--values", "values.npy")
            expected = reference(numbers, np.full(37, 500), 9, order)
            np.testing.assert_array_equal(found, expected)
            best = np.load("values.npy")
            self.assertEqual(best.dtype, np.float32)
            numbers_there = ~np.isnan(best)
            found_there = np.take_along_axis(numbers, found, axis=1)
            np.testing.assert_array_equal(best[numbers_there], found_there[numbers_there])
        self.assertEqual(
            self.good_json("select", "scores.npy", "-k", 9, "--local")["dtype"], "float16"
        )

    def test_bfloat16_is_said_by_an_option(self):
        """NumPy has no type for it: files hold two bytes that say nothing."""
        brains = (self.scores.view(np.uint32) >> 16).astype(np.uint16)
        numbers = (brains.astype(np.uint32) << 16).view(np.float32)
        for kind in ("V2", "<u2", "<i2"):
            np.save("scores.npy", brains.view(kind))
            found = self.select(9, "--dtype", "bfloat16", "--deterministic")
            np.testing.assert_array_equal(found, reference(numbers, np.full(37, 500), 9))
            words = ["say what they are with --dtype bfloat16"]
            self.bad(1, words, "select", "scores.npy", "-k", 9, "--local")
        np.save("scores.npy", self.scores)
        words = ["holds float32, and --dtype says bfloat16"]
        self.bad(1, words, "select", "scores.npy", "-k", 9, "--local", "--dtype", "bfloat16")

    def test_one_row_may_have_one_dimension(self):
        np.save("row.npy", self.scores[0])
        np.save("one.npy", self.lengths[:1])
        shown = self.good_json(
            "select", "row.npy", "-k", 6, "--local", "--lengths", "one.npy", "--deterministic"
        )
        expected = reference(self.scores[:1], self.lengths[:1], 6)
        self.assertEqual(shown["indices"], expected.tolist())
        self.assertEqual((shown["rows"], shown["width"], shown["k"]), (1, 500, 6))

    def test_lengths_may_be_a_column(self):
        np.save("column.npy", self.lengths[:, None])
        found = self.select(9, "--deterministic", "--lengths", "column.npy")
        np.testing.assert_array_equal(found, reference(self.scores, self.lengths, 9))

    def test_json_counts_rows_and_routes(self):
        shown = self.good_json("select", "scores.npy", "-k", 20, "--local", "--verify")
        self.assertEqual(shown["rows_verified"], 37)
        routes = shown["routes"]
        kinds = ("copied", "direct", "certified", "band", "recovery", "spill")
        self.assertEqual(sum(routes[kind] for kind in kinds), 37)
        self.assertGreaterEqual(routes["scores_read"], 37 * 500)

    def test_a_person_sees_first_positions_and_files(self):
        text = self.good("select", "scores.npy", "-k", 3, "--local", "--verify")
        self.assertIn("37 rows of 500 float32 scores, K 3, order any, ties any\n", text)
        self.assertIn("verified: 37 of 37 rows exact\n", text)
        self.assertIn("\nrow 0: ", text)
        self.assertIn("--out FILE.npy writes all of them", text)
        text = self.good("select", "scores.npy", "-k", 3, "--local", "--out", "out.npy")
        self.assertIn("positions in out.npy\n", text)
        self.assertNotIn("row 0:", text)


class Blocks(ToolTest):
    def test_a_file_of_many_blocks(self):
        scores = np.random.default_rng(4).standard_normal((300, 70000), dtype=np.float32)
        np.save("scores.npy", scores)
        lengths = np.linspace(0, 70000, 300).astype(np.int32)
        np.save("lengths.npy", lengths)
        shown = self.good_json(
            "select", "scores.npy", "-k", 30, "--local", "--deterministic", "--lengths",
            "lengths.npy", "--out", "out.npy",
        )  # fmt: skip
        self.assertGreater(shown["blocks"], 1)
        self.assertIsNone(shown["indices"])
        np.testing.assert_array_equal(np.load("out.npy"), reference(scores, lengths, 30))

    def test_a_row_wider_than_a_block(self):
        save_sparse("scores.npy", 2, 17_000_000)
        self.good("select", "scores.npy", "-k", 5, "--local", "--deterministic", "--out", "out.npy")
        self.assertEqual(np.load("out.npy").tolist(), [[0, 1, 2, 3, 4]] * 2)


class Refusals(ToolTest):
    def setUp(self):
        super().setUp()
        np.save("scores.npy", make_scores(4, 50))

    def refuse(self, words, *options, file="scores.npy"):
        before = sorted(os.listdir())
        self.bad(1, words, "select", file, "-k", 3, "--local", *options)
        self.assertEqual(sorted(os.listdir()), before)

    def test_scores_of_other_kinds(self):
        good = np.ones((4, 6), dtype=np.float32)
        for array, words in (
            (good.astype("<f8"), ["'<f8'", "astype('<f4')"]),
            (good.astype(">f4"), ["big-endian", "astype('<f4')"]),
            (np.asfortranarray(good), ["Fortran", "np.ascontiguousarray"]),
            (good.astype("<i4"), ["holds int32", "float32 is needed", "astype('<f4')"]),
            (good.reshape(2, 2, 6), ["(2, 2, 6)", "reshape(-1, a.shape[-1])"]),
            (good[:0], ["empty"]),
        ):
            np.save("bad.npy", array)
            self.refuse(["bad.npy", *words], file="bad.npy")

    def test_damaged_files(self):
        whole = Path("scores.npy").read_bytes()
        for content, words in (
            (b"", ["empty"]),
            (whole[:100], ["cut off"]),
            (whole[:-1], ["800 bytes, but 799 follow", "cut off"]),
            (whole + b"x", ["800 bytes, but 801 follow"]),
            (b"1.0, 2.0\n", ["not a .npy file"]),
        ):
            with open("bad.npy", "wb") as file:
                file.write(content)
            self.refuse(["bad.npy", *words], file="bad.npy")
        self.refuse(["none.npy: No such file"], file="none.npy")
        self.refuse(["not a regular file"], file=".")

    def test_files_that_do_not_fit_the_scores(self):
        np.save("three.npy", np.zeros(3, np.int32))
        np.save("float.npy", np.zeros(4, np.float32))
        np.save("square.npy", np.zeros((2, 2), np.int32))
        np.save("pages.npy", np.zeros((4, 3), np.int32))
        self.refuse(["three.npy", "each of the 4 score rows"], "--lengths", "three.npy")
        self.refuse(["float.npy", "holds float32", "int32"], "--lengths", "float.npy")
        self.refuse(["square.npy", "2 x 2"], "--row-offsets", "square.npy")
        self.refuse(
            ["pages.npy is 4 x 3", "at least 4 pages"], "--page-table", "pages.npy", "--page-size", 16
        )

    def test_a_page_that_stands_twice_cannot_be_verified(self):
        np.save("pages.npy", np.array([[0, 1], [7, 8], [5, 5], [1, 0]], np.int32))
        options = ("--page-table", "pages.npy", "--page-size", 32)
        self.refuse(["row 2: page 5 stands twice"], "--verify", *options)
        self.good("select", "scores.npy", "-k", 3, "--local", *options)

    def test_outputs_never_replace_inputs(self):
        os.link("scores.npy", "link.npy")
        before = Path("scores.npy").read_bytes()
        for name in ("scores.npy", "./scores.npy", "link.npy"):
            self.refuse([f"{name} is an input"], "--out", name)
            self.refuse([f"{name} is an input"], "--values", name)
        self.refuse(["are the same file"], "--out", "new.npy", "--values", "new.npy")
        self.refuse(["none/out.npy: No such file"], "--out", "none/out.npy")
        self.assertEqual(Path("scores.npy").read_bytes(), before)

    def test_a_full_disk_is_reported(self):
        done = run("select", "scores.npy", "-k", 3, "--local", "--out", "/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/dev/full: No space left", done.stderr)
        with open("/dev/full", "wb") as full:
            command = [TOPKCTL, "version"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left", done.stderr)

    def test_command_lines(self):
        for words, *arguments in (
            (["no command given"],),
            (["no command \"frobnicate\""], "frobnicate"),
            (["needs -k K"], "select", "scores.npy"),
            (["one FILE.npy, 0 given"], "select", "-k", 3),
            (["one FILE.npy, 2 given"], "select", "scores.npy", "scores.npy", "-k", 3),
            (["-k is \"0\"", "1 to 16384"], "select", "scores.npy", "-k", 0),
            (["-k is \"16385\""], "select", "scores.npy", "-k", 16385),
            (["-k is \"3x\""], "select", "scores.npy", "-k", "3x"),
            (["-k is \"-3\""], "select", "scores.npy", "-k", "-3"),
            (["--order is \"up\"", "any|index|value"], "select", "s", "-k", 3, "--order", "up"),
            (["--ties is \"first\""], "select", "s", "-k", 3, "--ties", "first"),
            (["power of two"], "select", "s", "-k", 3, "--page-size", 3),
            (["go together"], "select", "s", "-k", 3, "--page-size", 4),
            (["go together"], "select", "s", "-k", 3, "--page-table", "p"),
            (["--order value was given"], "select", "s", "-k", 3, "--deterministic", "--order", "value"),
            (["asks no daemon"], "select", "s", "-k", 3, "--local", "--url", "ipc:///x"),
            (["goes with --local"], "select", "s", "-k", 3, "--threads", 2),
            (["--timeout is \"soon\""], "ping", "--timeout", "soon"),
            (["--timeout is \"0\""], "ping", "--timeout", "0"),
            (["--timeout is \"nan\""], "ping", "--timeout", "nan"),
            (["--out is empty"], "select", "s", "-k", 3, "--out", ""),
            (["ping takes no --verify"], "ping", "--verify"),
            (["takes no operand, 1 given"], "devices", "cpu"),
            (["unrecognized option", "see topkctl devices --help"], "devices", "--colour"),
            (["requires an argument"], "devices", "--url"),
        ):  # fmt: skip
            self.bad(2, words, *arguments)

    def test_help_is_no_failure(self):
        self.assertIn("Commands:", self.good("--help"))
        self.assertIn("Exit codes:", self.good("select", "--help"))
        self.assertIn("--deadline", self.good("drain", "-h"))
        self.assertIn("wire version", self.good("version"))
        self.assertEqual(set(self.good_json("version")), {"topkctl", "libtopkd", "wire"})


class Interruptions(ToolTest):
    """Work long enough to be interrupted: 24 GiB of zeros that lie on no disk."""

    def start(self, **options):
        save_sparse("scores.npy", 400, 16_000_000)
        command = [TOPKCTL, "select", "scores.npy", "-k", "9", "--local", "--out", "out.npy"]
        command += ["--values", "values.npy"]
        process = subprocess.Popen(command, stderr=options.pop("stderr", subprocess.PIPE), **options)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while len(os.listdir()) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        self.assertEqual(len(os.listdir()), 3, "scores and two unfinished files")
        return process

    def test_a_signal_leaves_no_file(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start()
            process.send_signal(number)
            self.assertEqual(process.wait(60), -number)
            process.stderr.close()
            self.assertEqual(os.listdir(), ["scores.npy"])

    def test_a_file_that_shrinks_is_reported(self):
        process = self.start()
        os.truncate("scores.npy", 4096)
        _, text = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, text)
        self.assertIn(b"a mapped file shrank", text)
        self.assertEqual(os.listdir(), ["scores.npy"])

    def test_progress_is_shown_on_a_terminal(self):
        outer, inner = pty.openpty()
        process = self.start(stderr=inner, stdout=subprocess.DEVNULL)
        os.close(inner)
        text = b""
        deadline = time.monotonic() + 60
        while text.count(b"\r") < 2 and time.monotonic() < deadline:
            text += os.read(outer, 4096)
        process.kill()
        process.wait(60)
        os.close(outer)
        self.assertRegex(text, rb"selecting: \d+ of 400 rows \(\d+%\), [0-9.]+ [KMG]iB/s")


if __name__ == "__main__":
    unittest.main()
