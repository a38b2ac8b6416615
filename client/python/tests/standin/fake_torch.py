"""As much of PyTorch as topkd uses of it, over memory of the stand-in for the CUDA driver.

The real one is gigabytes. What it does on a GPU is tested with it (tests/gpu); here it is told apart
which way a request takes, and that a way's rules hold, in every run of the tests.
"""

from __future__ import annotations

import ctypes as c
import types
from typing import Any

import numpy as np

import gpu


class Storage:
    """One allocation."""

    def __init__(self, size_bytes: int) -> None:
        self.pointer = gpu.alloc(size_bytes)
        self._cdata = id(self)

    def free(self) -> None:
        gpu.free(self.pointer)


class Tensor:
    def __init__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
        dtype: str,
    ) -> None:
        self._storage, self._offset = storage, offset
        self.shape, self._strides, self.dtype = shape, strides, dtype
        self.device = types.SimpleNamespace(type="cuda", index=0)

    def data_ptr(self) -> int:
        return self._storage.pointer + self._offset

    def stride(self, dimension: int | None = None) -> Any:
        return self._strides if dimension is None else self._strides[dimension]

    def dim(self) -> int:
        return len(self.shape)

    def get_device(self) -> int:
        return 0

    def untyped_storage(self) -> Storage:
        return self._storage

    def new_empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return empty(shape, dtype)

    def part(self, rows: slice, columns: slice) -> Tensor:
        """Of a matrix."""
        first = (rows.start or 0) * self._strides[0] + (columns.start or 0)
        shape = (
            len(range(*rows.indices(self.shape[0]))), len(range(*columns.indices(self.shape[1])))
        )
        return Tensor(self._storage, self._offset + 4 * first, shape, self._strides, self.dtype)

    @property
    def host(self) -> Any:
        """The memory as NumPy sees it."""
        kind = "<i4" if self.dtype == "int32" else "<f4"
        span = 4 * (1 + sum((n - 1) * step for n, step in zip(self.shape, self._strides)))
        memory: Any = (c.c_char * span).from_address(self.data_ptr())
        steps = tuple(4 * step for step in self._strides)
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, kind), self.shape, steps)


def empty(shape: tuple[int, ...], dtype: str, device: Any = None) -> Tensor:
    strides = (shape[1], 1) if len(shape) == 2 else (1,)
    size = 4 * int(np.prod(shape))
    return Tensor(Storage(max(size, 1)), 0, tuple(shape), strides, dtype)


def module(stream: int) -> Any:
    """What ``import torch`` gives; its current stream is that one."""
    made: Any = types.ModuleType("torch")
    made.Tensor, made.empty = Tensor, empty
    for name in ("float32", "float16", "bfloat16", "int32", "int64"):
        setattr(made, name, name)
    made._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda cuda: stream)
    made.cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: False)
    return made
