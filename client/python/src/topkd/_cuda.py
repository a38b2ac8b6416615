"""Selection on a GPU in this process: plans, workspaces and descriptors of libtopksel.

The CUDA driver is used by its C interface, so that it makes no difference which framework the tensors
come from. A selection needs a descriptor and a workspace in device memory. Selections of one stream
follow each other, so each stream has one descriptor, and a workspace for each class of shapes.
"""

from __future__ import annotations

import atexit
import ctypes as c
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from . import _abi, _fork
from ._library import selector_library
from .errors import named

WORKSPACES_MAX = 8  # choice, a stream: each has at most 64 MiB
STREAMS_MAX = 32  # choice
_DETAIL_BYTES = 192  # TOPK_DETAIL_SIZE


@lru_cache(maxsize=None)
def _driver() -> c.CDLL:
    try:
        driver = c.CDLL("libcuda.so.1")
    except OSError as error:
        raise named("NO_DEVICE", f"there is no CUDA driver: {error}") from None
    for name, parameters in {
        "cuInit": [c.c_uint],
        "cuDeviceGet": [c.c_void_p, c.c_int],
        "cuDevicePrimaryCtxRetain": [c.c_void_p, c.c_int],
        "cuCtxPushCurrent_v2": [c.c_void_p],
        "cuCtxPopCurrent_v2": [c.c_void_p],
        "cuMemAlloc_v2": [c.c_void_p, c.c_size_t],
        "cuMemFree_v2": [c.c_uint64],
        "cuMemcpyHtoDAsync_v2": [c.c_uint64, c.c_void_p, c.c_size_t, c.c_void_p],
        "cuStreamIsCapturing": [c.c_void_p, c.c_void_p],
        "cuStreamSynchronize": [c.c_void_p],
        "cuPointerGetAttribute": [c.c_void_p, c.c_int, c.c_uint64],
        "cuGetErrorName": [c.c_int, c.c_void_p],
    }.items():
        symbol = getattr(driver, name)
        symbol.argtypes = parameters
        symbol.restype = c.c_int
    _check(driver, driver.cuInit(0), "the CUDA driver does not start")
    return driver


def _check(driver: c.CDLL, result: int, what: str) -> None:
    if result == 0:
        return
    text = c.c_char_p()
    driver.cuGetErrorName(result, c.byref(text))
    status = "NO_MEMORY" if result == 2 else "SYSTEM"  # CUDA_ERROR_OUT_OF_MEMORY
    raise named(status, f"{what}: {(text.value or b'CUDA error').decode()}")


@lru_cache(maxsize=None)
def _context(cuda: int, generation: int) -> c.c_void_p:
    driver = _driver()
    device, context = c.c_int(), c.c_void_p()
    _check(driver, driver.cuDeviceGet(c.byref(device), cuda), f"no GPU {cuda}")
    result = driver.cuDevicePrimaryCtxRetain(c.byref(context), device)
    _check(driver, result, f"no context on GPU {cuda}")
    return context


@contextmanager
def _entered(cuda: int) -> Iterator[c.CDLL]:
    """The device's primary context, which frameworks use too, is the thread's current one."""
    driver = _driver()
    _check(driver, driver.cuCtxPushCurrent_v2(_context(cuda, _fork.generation)), "no context")
    try:
        yield driver
    finally:
        driver.cuCtxPopCurrent_v2(c.byref(c.c_void_p()))


def ordinal_of(pointer: int) -> int:
    """The number of the GPU, in this process, that device memory lies on."""
    driver, number = _driver(), c.c_int()
    result = driver.cuPointerGetAttribute(c.byref(number), 9, pointer)  # DEVICE_ORDINAL
    _check(driver, result, "no memory of a GPU")
    return number.value


def synchronize(cuda: int, handle: int) -> None:
    """Waits for one stream."""
    with _entered(cuda) as driver:
        _check(driver, driver.cuStreamSynchronize(handle), "the stream failed")


class Memory:
    """Device memory of the driver. Freeing it waits for kernels that use it."""

    def __init__(self, cuda: int, size_bytes: int) -> None:
        self._cuda, self._generation = cuda, _fork.generation
        self.pointer = 0
        pointer = c.c_uint64()
        with _entered(cuda) as driver:
            _check(driver, driver.cuMemAlloc_v2(c.byref(pointer), size_bytes), "no device memory")
        self.pointer = pointer.value

    def __del__(self) -> None:
        if _fork is None:  # the interpreter is ending: the driver frees what is left
            return
        if self.pointer and self._generation == _fork.generation:
            with _entered(self._cuda) as driver:
                driver.cuMemFree_v2(self.pointer)


class _Stream:
    """What one stream needs."""

    def __init__(self, cuda: int) -> None:
        self.lock = threading.Lock()
        self.descriptor = Memory(cuda, c.sizeof(_abi.SelectorArgs))
        self.workspaces: OrderedDict[Any, tuple[_abi.SelectorPlan, Memory]] = OrderedDict()


_lock = threading.Lock()
_streams: OrderedDict[tuple[int, int, int], _Stream] = OrderedDict()
atexit.register(_streams.clear)  # while all that freeing needs is still there


def _stream_of(cuda: int, handle: int) -> _Stream:
    key = (cuda, handle, _fork.generation)
    with _lock:
        stream = _streams.get(key)
        if stream is None:
            stream = _streams[key] = _Stream(cuda)
            if len(_streams) > STREAMS_MAX:
                _streams.popitem(last=False)
        _streams.move_to_end(key)
        return stream


@lru_cache(maxsize=None)
def _device(cuda: int) -> _abi.SelectorDevice:
    device, detail = _abi.SelectorDevice(), c.create_string_buffer(_DETAIL_BYTES)
    _raise(selector_library().topk_cuda_device(cuda, c.byref(device), detail), detail)
    return device


def _raise(status: int, detail: Any) -> None:
    from ._local import raise_status

    raise_status(status, detail)


def _bucket(number: int) -> int:
    """The size class of rows or columns: the next power of two, within int32."""
    return min(1 << (number - 1).bit_length(), 0x7FFFFFFF)


def _workspace(
    stream: _Stream, key: tuple[int, ...], cuda: int, handle: int
) -> tuple[_abi.SelectorPlan, Memory]:
    """With the stream's lock: the plan and the workspace of a class of shapes."""
    found = stream.workspaces.get(key)
    if found is not None:
        stream.workspaces.move_to_end(key)
        return found
    k, rows, width, alignment, order, ties, dtype = key
    library, detail = selector_library(), c.create_string_buffer(_DETAIL_BYTES)
    shape = _abi.SelectorShape(k, rows, width, alignment, _abi.SelectorOptions(order, ties, dtype))
    plan = _abi.SelectorPlan()
    status = library.topk_plan_make(c.byref(shape), c.byref(_device(cuda)), c.byref(plan), detail)
    _raise(status, detail)
    _raise(library.topk_cuda_load(c.byref(plan), detail), detail)
    memory = Memory(cuda, max(plan.workspace_bytes, 256))
    status = library.topk_cuda_workspace_init(c.byref(plan), memory.pointer, handle, detail)
    _raise(status, detail)
    stream.workspaces[key] = (plan, memory)
    if len(stream.workspaces) > WORKSPACES_MAX:
        stream.workspaces.popitem(last=False)
    return plan, memory


def select(
    args: _abi.SelectorArgs, options: _abi.SelectorOptions, alignment: int, cuda: int, handle: int
) -> None:
    """Enqueues a selection in a stream."""
    library, detail = selector_library(), c.create_string_buffer(_DETAIL_BYTES)
    _raise(library.topk_args_check(c.byref(args), c.byref(options), detail), detail)
    key = (args.k, _bucket(args.num_rows), _bucket(args.width), alignment, options.order,
           options.ties, options.dtype)
    with _entered(cuda) as driver:
        capturing = c.c_int()
        _check(driver, driver.cuStreamIsCapturing(handle, c.byref(capturing)), "not a stream")
        if capturing.value:
            raise named(
                "UNSUPPORTED",
                "the stream is being captured: a graph would replay this one descriptor. Use "
                "Client.lane(...) in a capture, or the C interface (topk_cuda_enqueue)",
            )
        stream = _stream_of(cuda, handle)
        with stream.lock:
            plan, memory = _workspace(stream, key, cuda, handle)
            result = driver.cuMemcpyHtoDAsync_v2(
                stream.descriptor.pointer, c.byref(args), c.sizeof(args), handle
            )
            _check(driver, result, "the descriptor was not copied")
            status = library.topk_cuda_enqueue(
                c.byref(plan), stream.descriptor.pointer, memory.pointer, handle, detail
            )
            _raise(status, detail)
