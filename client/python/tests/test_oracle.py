"""The oracle itself: against sorting in plain Python, and that it rejects what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from inputs import FAMILIES
from topkd.testing import check, oracle


def sorted_positions(row: Any) -> list[int]:
    """By the words of the contract, with Python's own numbers."""

    def key(position: int) -> tuple[bool, float, int]:
        value = float(row[position])
        return (math.isnan(value), 0.0 if math.isnan(value) else -value, position)

    return sorted(range(len(row)), key=key)


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_is_a_plain_sort(family: str, rng: Any) -> None:
    scores = FAMILIES[family](rng, 6, 50)
    lengths = [-3, 0, 1, 20, 50, 70]
    for k in (1, 7, 49, 50, 51):
        by_value = oracle(scores, lengths, k, order="value")
        by_index = oracle(scores, lengths, k)
        for row, length in enumerate(lengths):
            length = min(max(length, 0), 50)
            best = sorted_positions(scores[row, :length])[:k]
            padding = [-1] * (k - len(best))
            assert by_value[row].tolist() == best + padding
            assert by_index[row].tolist() == sorted(best) + padding
        check(scores, by_index, lengths, deterministic=True)
        check(scores, by_value, lengths, order="value", ties="lowest")


WRONG = {
    "a score left out is higher": lambda r: r.__setitem__((0, 0), 9),
    "occurs twice": lambda r: r.__setitem__((0, 1), r[0, 0]),
    "no position below": lambda r: r.__setitem__((0, 1), 10),
    "only -1": lambda r: r.__setitem__((1, 3), 2),
}


@pytest.mark.parametrize("words", WRONG)
def test_check_refuses_wrong_answers(words: str) -> None:
    scores = np.arange(20, 0, -1, dtype=np.float32).reshape(2, 10)
    right = oracle(scores, [10, 2], 4)
    check(scores, right, [10, 2])
    WRONG[words](right)
    with pytest.raises(AssertionError, match=words):
        check(scores, right, [10, 2])


def test_check_knows_order_ties_and_values() -> None:
    scores = np.array([[1, 3, 1, 1, 2]], dtype=np.float32)
    check(scores, np.array([[4, 1, 3]], np.int32))
    with pytest.raises(AssertionError, match="lowest"):
        check(scores, np.array([[4, 1, 3]], np.int32), ties="lowest")
    with pytest.raises(AssertionError, match="ascend"):
        check(scores, np.array([[4, 1, 0]], np.int32), order="index")
    with pytest.raises(AssertionError, match="descend"):
        check(scores, np.array([[4, 1, 0]], np.int32), order="value")
    with pytest.raises(AssertionError, match="by position"):
        check(scores, np.array([[1, 4, 3, 2]], np.int32), order="value")
    with pytest.raises(AssertionError, match="not the score"):
        check(scores, np.array([[1]], np.int32), values=np.array([[2]], np.float32))


def test_check_undoes_tables_and_offsets() -> None:
    scores = np.array([[1, 3, 0, 5]], dtype=np.float32)
    table = np.array([[7, 2]], np.int32)
    check(scores, np.array([[15, 5]], np.int32), page_table=table, page_size=2)
    with pytest.raises(AssertionError, match="no page"):
        check(scores, np.array([[15, 9]], np.int32), page_table=table, page_size=2)
    check(scores, np.array([[101, 103]], np.int32), row_offsets=np.array([100], np.int32))
