"""Selections through a daemon and in process: the same contract, judged by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import topkd
from inputs import FAMILIES, normal
from topkd import _dlpack
from topkd.testing import check, oracle

Select = Callable[..., Any]


@pytest.fixture(params=["daemon", "process"])
def select(request: pytest.FixtureRequest) -> Select:
    """Client.select or topkd.select: what both must do the same."""
    if request.param == "daemon":
        return request.getfixturevalue("client").select  # type: ignore[no-any-return]
    return topkd.select


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact(select: Select, family: str, rng: Any) -> None:
    for rows, width, k in ((1, 1, 1), (5, 300, 7), (33, 4099, 512), (3, 20000, 2048)):
        scores = FAMILIES[family](rng, rows, width)
        lengths = rng.integers(-2, width + 3, rows).astype(np.int32)
        check(scores, select(scores, k=k))
        check(scores, select(scores, lengths, k), lengths)


@pytest.mark.parametrize(
    "options",
    [
        {"order": "index"},
        {"order": "value"},
        {"ties": "lowest"},
        {"order": "value", "ties": "lowest"},
        {"deterministic": True},
    ],
    ids=str,
)
def test_options(select: Select, options: dict[str, Any], rng: Any) -> None:
    for family in ("normal", "few_values", "special"):
        scores = FAMILIES[family](rng, 9, 5000)
        lengths = [5000, 0, 1, 63, 64, 65, 4999, -1, 6000]
        got = select(scores, lengths, 64, **options)
        check(scores, got, lengths, **options)
        if options.get("ties") == "lowest" and options.get("order") == "value":
            assert (got == oracle(scores, lengths, 64, order="value")).all()
        if options.get("deterministic"):
            assert (got == oracle(scores, lengths, 64)).all()


def test_values_page_table_offsets(select: Select, rng: Any) -> None:
    scores = normal(rng, 6, 1000)
    lengths = np.array([1000, 3, 0, 999, 500, 64], np.int32)
    indices, values = select(scores, lengths, 64, values=True)
    assert values.dtype == np.float32 and values.shape == indices.shape == (6, 64)
    check(scores, indices, lengths, values=values)
    table = np.stack([rng.permutation(500)[:63] for _ in range(6)]).astype(np.int32)
    got = select(scores, lengths, 64, page_table=table, page_size=16)
    check(scores, got, lengths, page_table=table, page_size=16)
    offsets = np.arange(6, dtype=np.int32) * 100000
    got = select(scores, lengths, 64, row_offsets=offsets)
    check(scores, got, lengths, row_offsets=offsets)


class Bfloat16:
    """A tensor of bfloat16, which NumPy has not: the upper halves of float32 numbers, by DLPack."""

    def __init__(self, numbers: Any) -> None:
        self.halves = np.ascontiguousarray(numbers.view(np.uint32) >> 16).astype(np.uint16)
        self.numbers = (self.halves.astype(np.uint32) << 16).view(np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        pointer, shape = self.halves.ctypes.data, self.halves.shape
        return _dlpack.make((pointer, shape, _dlpack.dense(shape), "bf2", *self.__dlpack_device__()), self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CPU, 0)


@pytest.mark.parametrize("family", ["normal", "few_values", "special", "mostly_nan"])
def test_scores_of_16_bits(select: Select, family: str, rng: Any) -> None:
    lengths = [3001, 0, 63, 64, 65, -1, 9999]
    for order in ("any", "index", "value"):
        numbers = FAMILIES[family](rng, 7, 3001)
        with np.errstate(over="ignore"):
            halves = numbers.astype(np.float16)
        indices, values = select(halves, lengths, 64, order=order, ties="lowest", values=True)
        assert values.dtype == np.float32
        check(halves, indices, lengths, order=order, ties="lowest", values=values)
        check(halves[:, 1:99], select(halves[:, 1:99], k=7))  # rows at any 2 bytes
        brains = Bfloat16(numbers)
        indices, values = select(brains, lengths, 64, order=order, ties="lowest", values=True)
        found = [np.asarray(indices), np.asarray(values)]
        check(brains.numbers, found[0], lengths, order=order, ties="lowest", values=found[1])


def test_layouts(select: Select, rng: Any) -> None:
    """Strided and unaligned rows, one row without a dimension, no rows, out= of several kinds."""
    wide = normal(rng, 8, 3001)
    check(wide[:, 5:1500], select(wide[:, 5:1500], k=100))
    check(wide[::2], select(wide[::2], k=100))
    one = select(wide[3], k=9)
    assert one.shape == (9,)
    check(wide[3:4], one[None])
    assert select(wide[:0], k=5).shape == (0, 5)
    assert [part.shape for part in select(wide[:0], k=5, values=True)] == [(0, 5), (0, 5)]
    for out in (np.empty((8, 16), np.int32), np.empty((8, 40), np.int32)[:, 3:19]):
        out.fill(-7)
        assert select(wide, k=16, out=out) is out
        check(wide, out)
    pair = (np.empty((8, 16), np.int32), np.empty((8, 16), np.float32))
    got = select(wide, k=16, values=True, out=pair)
    assert got[0] is pair[0] and got[1] is pair[1]
    check(wide, pair[0], values=pair[1])
    single = np.empty(16, np.int32)
    select(wide[0], k=16, out=single)
    check(wide[:1], single[None])


def test_kinds_of_lengths(select: Select, rng: Any) -> None:
    scores = normal(rng, 4, 200)
    wanted = [10, 200, 0, 7]
    for lengths in (
        wanted, tuple(wanted), np.array(wanted, np.int32), np.array(wanted, np.int64),
        np.array([wanted], np.int32).T, [10, 2**40, -(2**40), 7],
    ):
        check(scores, select(scores, lengths, 8), wanted)
    check(scores, select(scores, 10, 8), 10)
    check(scores, select(scores, -5, 8), 0)
    check(scores, select(scores, np.int32(10), np.int64(8)), 10)
    many = normal(rng, 9000, 40)  # more lengths than fit into a message
    lengths = rng.integers(0, 41, 9000).astype(np.int32)
    for given in (lengths, lengths.tolist()):
        check(many[::97], select(many, given, 4)[::97], lengths[::97])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "k 0": ({"k": 0}, "k"),
    "k too large": ({"k": 16385}, "16384"),
    "k negative": ({"k": -1}, "k is -1"),
    "order": ({"order": "up"}, "order is 'up'"),
    "ties": ({"ties": "first"}, "ties is 'first'"),
    "deterministic by value": ({"deterministic": True, "order": "value"}, "deterministic"),
    "float64": ({"scores": np.zeros((2, 9))}, "dtype f8, float32"),
    "three dimensions": ({"scores": np.zeros((2, 2, 2), np.float32)}, "3 dimensions"),
    "column order": ({"scores": np.zeros((9, 9), np.float32).T}, "contiguous"),
    "no columns": ({"scores": np.zeros((2, 0), np.float32)}, "at least 1"),
    "no tensor": ({"scores": "scores"}, "is no tensor"),
    "backwards": ({"scores": np.zeros((4, 9), np.float32)[::-1]}, "apart"),
    "a field": ({"scores": np.zeros((2, 9), "<f4, u1")["f0"]}, "5 bytes apart"),
    "odd rows": ({"scores": np.ndarray((2, 9), "<f4", bytearray(80), 0, (38, 4))}, "38 bytes apart"),
    "byte order": ({"scores": np.zeros((2, 9), ">f4")}, "byte order"),
    "lengths too short": ({"lengths": [1]}, "1 numbers"),
    "lengths of floats": ({"lengths": np.zeros(2, np.float32)}, "lengths: dtype float32"),
    "lengths of text": ({"lengths": ["a", "b"]}, "lengths"),
    "page size alone": ({"page_size": 4}, "page_size"),
    "page table alone": ({"page_table": np.zeros((2, 4), np.int32)}, "page_size"),
    "page size": ({"page_table": np.zeros((2, 4), np.int32), "page_size": 3}, "power of two"),
    "short table": ({"page_table": np.zeros((2, 1), np.int32), "page_size": 2}, "page"),
    "table rows": ({"page_table": np.zeros((3, 9), np.int32), "page_size": 1}, "3 rows"),
    "offsets": ({"row_offsets": np.zeros(3, np.int32)}, "row_offsets: shape"),
    "out shape": ({"out": np.zeros((2, 3), np.int32)}, "out: shape"),
    "out dtype": ({"out": np.zeros((2, 4), np.int64)}, "out: dtype int64"),
    "out of one": ({"out": np.zeros((2, 4), np.int32), "values": True}, "pair"),
    "stream": ({"stream": 0}, "stream"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(select: Select, name: str) -> None:
    arguments, words = BAD[name]
    scores = np.zeros((2, 9), np.float32)
    with pytest.raises(topkd.Error, match=words) as caught:
        select(**{"scores": scores, "k": 4, **arguments})
    # What the worker finds beyond a tensor's end is out of range, all else is invalid.
    assert caught.value.name in ("TOPKD_E_INVALID", "TOPKD_E_OUT_OF_RANGE") and caught.value.hint
    check(scores, select(scores, k=4))  # and all is well afterwards


def test_a_read_only_output_is_refused(select: Select) -> None:
    out = np.zeros((2, 4), np.int32)
    out.flags.writeable = False
    with pytest.raises(topkd.errors.InvalidError, match="read-only"):
        select(np.zeros((2, 9), np.float32), k=4, out=out)
