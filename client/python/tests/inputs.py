"""Score matrices that selectors get wrong, by name."""

from __future__ import annotations

from typing import Any

import numpy as np


def normal(rng: Any, rows: int, width: int) -> Any:
    return rng.standard_normal((rows, width), dtype=np.float32)


def relu(rng: Any, rows: int, width: int) -> Any:
    """Mostly zeros: the plateau is the boundary."""
    return np.maximum(normal(rng, rows, width) - 1, 0)


def constant(rng: Any, rows: int, width: int) -> Any:
    return np.full((rows, width), rng.standard_normal(), dtype=np.float32)


def few_values(rng: Any, rows: int, width: int) -> Any:
    return rng.integers(0, 5, (rows, width)).astype(np.float32)


def neighbours(rng: Any, rows: int, width: int) -> Any:
    """Values that differ in their last bits only."""
    bits = np.uint32(0x3F800000) + np.arange(width, dtype=np.uint32)
    return rng.permuted(np.tile(bits, (rows, 1)), axis=1).view(np.float32)


def zeros_of_both_signs(rng: Any, rows: int, width: int) -> Any:
    return np.where(rng.random((rows, width)) < 0.5, np.float32(0.0), np.float32(-0.0))


def special(rng: Any, rows: int, width: int) -> Any:
    """NaN of either sign, infinities, zeros, denormals, the largest numbers."""
    choices = np.array(
        [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3.4028235e38, -3.4028235e38, 1],
        dtype=np.float32,
    )
    return rng.choice(choices, (rows, width)).astype(np.float32)


def mostly_nan(rng: Any, rows: int, width: int) -> Any:
    scores = normal(rng, rows, width)
    scores[rng.random((rows, width)) < 0.9] = np.nan
    return scores


FAMILIES = {
    f.__name__: f
    for f in (
        normal, relu, constant, few_values, neighbours, zeros_of_both_signs, special, mostly_nan,
    )
}
