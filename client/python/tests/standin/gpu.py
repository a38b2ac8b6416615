"""Device memory and streams of the stand-in for the CUDA driver (tests/support/fake_cuda).

The run has it preloaded. Its device memory is shared memory of the host, so tests can look into it;
its streams are threads. It says nothing about time, everything about order and bookkeeping.
"""

from __future__ import annotations

import ctypes as c
import threading
from typing import Any

import numpy as np

UUID = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"  # of its first device
cuda = c.CDLL("libcuda.so.1")
for name, parameters in {
    "cuMemAlloc_v2": [c.c_void_p, c.c_size_t],
    "cuMemAllocManaged": [c.c_void_p, c.c_size_t, c.c_uint],
    "cuMemAllocAsync": [c.c_void_p, c.c_size_t, c.c_void_p],
    "cuMemHostAlloc": [c.c_void_p, c.c_size_t, c.c_uint],
    "cuMemFree_v2": [c.c_uint64],
    "cuCtxPushCurrent_v2": [c.c_void_p],
    "cuCtxPopCurrent_v2": [c.c_void_p],
    "cuDevicePrimaryCtxRetain": [c.c_void_p, c.c_int],
    "cuMemCreate": [c.c_void_p, c.c_size_t, c.c_void_p, c.c_ulonglong],
    "cuMemAddressReserve": [c.c_void_p, c.c_size_t, c.c_size_t, c.c_uint64, c.c_ulonglong],
    "cuMemMap": [c.c_uint64, c.c_size_t, c.c_size_t, c.c_uint64, c.c_ulonglong],
    "cuMemUnmap": [c.c_uint64, c.c_size_t],
    "cuMemRelease": [c.c_uint64],
    "cuMemSetAccess": [c.c_uint64, c.c_size_t, c.c_void_p, c.c_size_t],
    "cuStreamCreate": [c.c_void_p, c.c_uint],
    "cuStreamSynchronize": [c.c_void_p],
    "cuStreamDestroy_v2": [c.c_void_p],
    "cuStreamQuery": [c.c_void_p],
    "cuStreamWaitValue64_v2": [c.c_void_p, c.c_uint64, c.c_uint64, c.c_uint],
    "cuMemcpyDtoDAsync_v2": [c.c_uint64, c.c_uint64, c.c_size_t, c.c_void_p],
}.items():
    getattr(cuda, name).argtypes = parameters
    getattr(cuda, name).restype = c.c_int


def call(name: str, *arguments: Any) -> None:
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: {result}"


_entered = threading.local()


def enter() -> None:
    """The thread's context, for allocations."""
    if getattr(_entered, "once", False):
        return
    _entered.once = True
    context = c.c_void_p()
    call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)


def alloc(size: int, kind: str = "device") -> int:
    pointer = c.c_uint64()
    if kind == "device":
        call("cuMemAlloc_v2", c.byref(pointer), size)
    elif kind == "managed":
        call("cuMemAllocManaged", c.byref(pointer), size, 1)
    elif kind == "pool":
        call("cuMemAllocAsync", c.byref(pointer), size, None)
    else:
        call("cuMemHostAlloc", c.byref(pointer), size, 0)
    return pointer.value


def free(pointer: int) -> None:
    call("cuMemFree_v2", pointer)


class _Access(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int), ("flags", c.c_int)]


def map_pieces(address: int, num: int, piece: int, exportable: bool = True) -> None:
    """Virtual memory of several allocations, as PyTorch's expandable segments."""
    for i in range(num):
        handle = c.c_uint64()
        properties = (c.c_uint32 * 8)(1, 1 if exportable else 0, 1, 0)  # pinned, descriptor, device
        call("cuMemCreate", c.byref(handle), piece, c.byref(properties), 0)
        call("cuMemMap", address + i * piece, piece, 0, handle.value, 0)
        call("cuMemRelease", handle.value)
    call("cuMemSetAccess", address, num * piece, c.byref(_Access(1, 0, 3)), 1)


def reserve(size: int) -> int:
    address = c.c_uint64()
    call("cuMemAddressReserve", c.byref(address), size, 0, 0, 0)
    return address.value


class Stream:
    """With the protocol by which others name their streams."""

    def __init__(self) -> None:
        handle = c.c_void_p()
        call("cuStreamCreate", c.byref(handle), 1)
        self.ptr = handle.value or 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def copy(self, to: int, source: int, size: int) -> None:
        call("cuMemcpyDtoDAsync_v2", to, source, size, self.ptr)

    def wait(self) -> None:
        call("cuStreamSynchronize", self.ptr)

    def is_done(self) -> bool:
        return bool(cuda.cuStreamQuery(self.ptr) == 0)

    def await_value(self, pointer: int, value: int) -> None:
        """What comes after it runs once the int64 there is at least this."""
        call("cuStreamWaitValue64_v2", self.ptr, pointer, value, 0)


class Tensor:
    """What CuPy's and Numba's arrays look like: __cuda_array_interface__ with a stream."""

    def __init__(
        self, pointer: int, shape: tuple[int, ...], kind: str = "<f4", stream: Stream | None = None
    ) -> None:
        self.pointer, self.shape, self.kind = pointer, shape, kind
        self.stream = stream

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * 4

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3, "shape": self.shape, "typestr": self.kind, "strides": None,
            "data": (self.pointer, False), "stream": self.stream.ptr if self.stream else None,
        }

    @property
    def host(self) -> Any:
        """The memory as NumPy sees it."""
        memory: Any = (c.c_char * self.nbytes).from_address(self.pointer)
        return np.frombuffer(memory, self.kind).reshape(self.shape)


def host(array: Any) -> Any:
    """A topkd.Array on the device as NumPy sees it."""
    interface = array.__cuda_array_interface__
    return Tensor(interface["data"][0], interface["shape"], interface["typestr"]).host
