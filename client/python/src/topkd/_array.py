"""Tensors of topkd's own: memory of a session or of the driver, for any framework to look at."""

from __future__ import annotations

import sys
from typing import Any

from . import _dlpack
from .errors import invalid, named

_TYPES = {"f4": "<f4", "f2": "<f2", "i4": "<i4"}
_NAMES = {"float32": "f4", "float16": "f2", "half": "f2", "bfloat16": "bf2", "int32": "i4"}
_DTYPES = {"f4": "float32", "f2": "float16", "bf2": "bfloat16", "i4": "int32"}


def kind_of(dtype: Any) -> str:
    """ "f4" of "float32", numpy.float32, torch.float32, and so on."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    kind = _NAMES.get(text.rpartition(".")[2])
    if kind is None:
        raise invalid(f"dtype {dtype} is none of float32, float16, bfloat16, int32")
    return kind


class Array:
    """A dense tensor that topkd made, in shared memory or on a GPU.

    Any framework can wrap it without a copy: it has ``__dlpack__``, and ``__array_interface__`` or
    ``__cuda_array_interface__``. The memory stays as long as this object or a wrapper of it.

    Attributes:
        shape: the sizes.
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int32"``.
        pointer: the address of the first element, on the device.
    """

    def __init__(
        self, pointer: int, shape: tuple[int, ...], kind: str, cuda: int, owner: Any
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.dtype = _DTYPES[kind]
        self._kind = kind
        self._cuda = cuda
        self._owner = owner

    def __repr__(self) -> str:
        where = "shared memory" if self._cuda < 0 else f"GPU {self._cuda}"
        return f"topkd.Array(shape={self.shape}, dtype={self.dtype}, {where})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a topkd.Array is memory of this process's session and cannot be pickled: send a copy "
            "(numpy.array(array)), or make one in the other process"
        )

    def _interface(self) -> dict[str, Any]:
        if self._kind not in _TYPES:
            raise AttributeError("array interfaces have no bfloat16: use __dlpack__")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": _TYPES[self._kind],
            "data": (self.pointer, False),
            "strides": None,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._cuda >= 0:
            raise AttributeError("the array is on a GPU: it has __cuda_array_interface__")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._cuda < 0:
            raise AttributeError("the array is in host memory: it has __array_interface__")
        return self._interface()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CUDA, self._cuda) if self._cuda >= 0 else (_dlpack.CPU, 0)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule (unversioned). ``dl_device`` and ``copy`` are only taken where they ask
        for what is there; a stream needs no order here, because whoever wrote the memory did it in
        the caller's."""
        device = options.get("dl_device")
        if device is not None and tuple(device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.__dlpack_device__()}, not on {device}")
        if options.get("copy"):
            raise BufferError("topkd makes no copies of its arrays")
        layout = (
            self.pointer,
            self.shape,
            _dlpack.dense(self.shape),
            self._kind,
            *self.__dlpack_device__(),
        )
        return _dlpack.make(layout, self)


def wrap(array: Array, framework: str) -> Any:
    """The array as a tensor of a framework, over the same memory."""
    if framework == "torch":
        import torch

        return torch.from_dlpack(array)
    if framework == "numpy":
        if array.dtype == "bfloat16":
            raise invalid("NumPy has no bfloat16: framework='torch', or 'topkd' for a topkd.Array")
        return _numpy().asarray(array)
    if framework == "cupy":
        import cupy

        return cupy.asarray(array)
    if framework == "numba":
        from numba import cuda

        return cuda.as_cuda_array(array)
    if framework == "jax":
        import jax

        return jax.dlpack.from_dlpack(array)
    if framework == "topkd":
        return array
    raise invalid(
        f"framework {framework!r} is none of numpy, torch, cupy, jax, numba, topkd (topkd.Array)"
    )


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise named(
            "UNSUPPORTED", f"results in host memory are NumPy arrays, and there is none: {error}"
        ) from error
    return numpy


def has_numpy() -> bool:
    return "numpy" in sys.modules or _find_numpy()


def _find_numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True
