"""The selection contract in plain NumPy, written from its text and not from the selectors.

``oracle`` gives the one answer that the strictest options have; ``check`` judges any answer. Both are
slow and simple. The contract is at the top of topk_select.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["check", "oracle", "ranks"]


def ranks(scores: Any) -> Any:
    """Unsigned numbers that compare as the contract says: +inf > finite > -inf > NaN, -0 = +0.

    Args:
        scores: float32, or what converts to it exactly (float16, bfloat16 of ml_dtypes), any shape.
    Returns:
        uint32 of that shape, larger is better; equal numbers are ties.
    """
    values = np.asarray(scores, dtype=np.float32) + np.float32(0.0)  # -0 becomes +0
    bits = values.view(np.uint32)
    above = bits >> np.uint32(31) == 0
    keys = np.where(above, bits | np.uint32(0x80000000), ~bits)
    return np.where(np.isnan(values), np.uint32(0), keys)


def _lengths(lengths: Any, rows: int, width: int) -> Any:
    if lengths is None:
        lengths = width
    return np.clip(np.broadcast_to(np.asarray(lengths, dtype=np.int64), (rows,)), 0, width)


def oracle(scores: Any, lengths: Any = None, k: int = 2048, *, order: str = "index") -> Any:
    """The answer in which ties go to the lowest positions.

    Args:
        scores: float32 [rows, width].
        lengths: valid scores of a row: None, a number, or [rows].
        k: positions a row.
        order: ``"index"`` or ``"value"`` (equal scores by position).
    Returns:
        int32 [rows, k], -1 after the last position of a shorter row.
    """
    if order not in ("index", "value"):
        raise ValueError(f"order {order!r} is neither 'index' nor 'value'")
    scores = np.asarray(scores)
    rows, width = scores.shape
    result = np.full((rows, k), -1, dtype=np.int32)
    for row, length in enumerate(_lengths(lengths, rows, width)):
        falling = np.uint32(0xFFFFFFFF) - ranks(scores[row, :length])
        best = np.argsort(falling, kind="stable")[:k]
        result[row, : best.size] = best if order == "value" else np.sort(best)
    return result


def check(
    scores: Any,
    indices: Any,
    lengths: Any = None,
    *,
    order: str = "any",
    ties: str = "any",
    deterministic: bool = False,
    values: Any = None,
    page_table: Any = None,
    page_size: int | None = None,
    row_offsets: Any = None,
) -> None:
    """Raises AssertionError, naming the row, unless ``indices`` is an answer of the contract.

    Args:
        scores, lengths: as in ``oracle``.
        indices: int32 [rows, k], what a selector gave.
        order, ties, deterministic, page_table, page_size, row_offsets: what it was asked for.
        values: float32 [rows, k] that it gave beside, or None. A page table must not name a page
            twice in a row, or positions could not be told from each other.
    """
    if deterministic:
        order, ties = "index", "lowest"
    scores, indices = np.asarray(scores), np.asarray(indices)
    rows, width = scores.shape
    assert indices.dtype == np.int32, f"dtype {indices.dtype} is not int32"
    assert indices.ndim == 2 and indices.shape[0] == rows, f"shape {indices.shape}, {rows} rows"
    for row, length in enumerate(_lengths(lengths, rows, width)):
        got = indices[row].astype(np.int64)
        if row_offsets is not None:
            got = np.where(got == -1, -1, got - int(np.asarray(row_offsets)[row]))
        if page_table is not None:
            assert page_size is not None
            got = _unpage(got, np.asarray(page_table)[row], page_size, int(length), row)
        _check_row(scores[row, :length], got, order, ties, row)
        if values is not None:
            wanted = np.where(got < 0, np.float32(-np.inf), _numbers(scores[row])[np.maximum(got, 0)])
            same = wanted.astype(np.float32).view(np.uint32) == np.asarray(values)[row].view(np.uint32)
            assert same.all(), f"row {row}: value {int(np.argmin(same))} is not the score there"


def _numbers(scores: Any) -> Any:
    """As float32; a NaN of float16 is quiet then."""
    numbers = scores.astype(np.float32)
    if scores.dtype == np.float16:
        numbers.view(np.uint32)[np.isnan(numbers)] |= np.uint32(0x00400000)
    return numbers


def _unpage(got: Any, table: Any, page_size: int, length: int, row: int) -> Any:
    """Positions of a row from places of the paged cache."""
    used = table[: (length + page_size - 1) // page_size]
    page_of = {int(page): i for i, page in enumerate(used)}
    assert len(page_of) == used.size, f"row {row}: a page occurs twice in the table"
    result = np.full_like(got, -1)
    for i, place in enumerate(got):
        if place != -1:
            page = int(place) // page_size
            assert page in page_of, f"row {row}: entry {i}, {place}, lies on no page of the row"
            result[i] = page_of[page] * page_size + int(place) % page_size
    return result


def _check_row(valid: Any, got: Any, order: str, ties: str, row: int) -> None:
    k, length = got.size, valid.size
    num = min(k, length)
    taken = got[:num]
    assert (got[num:] == -1).all(), f"row {row}: after {num} positions there must be only -1"
    bad = (taken < 0) | (taken >= length)
    assert not bad.any(), f"row {row}: {taken[bad][0]} is no position below {length}"
    assert np.unique(taken).size == num, f"row {row}: a position occurs twice"
    keys = ranks(valid)
    chosen = np.zeros(length, dtype=bool)
    chosen[taken] = True
    if 0 < num < length:
        least, most = keys[chosen].min(), keys[~chosen].max()
        assert least >= most, f"row {row}: a score left out is higher than one that was taken"
        if ties == "lowest":
            tied = np.flatnonzero(keys == least)
            first = tied[: int(chosen[tied].sum())]
            assert chosen[first].all(), f"row {row}: ties do not go to the lowest positions"
    if order == "index" or (order == "any" and length <= k):
        assert (np.diff(taken) > 0).all(), f"row {row}: positions do not ascend"
    if order == "value":
        falling = keys[taken].astype(np.int64)
        steps = np.diff(falling)
        assert (steps <= 0).all(), f"row {row}: values do not descend"
        equal = steps == 0
        assert (np.diff(taken)[equal] > 0).all(), f"row {row}: equal values not by position"
