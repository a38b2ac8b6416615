"""What an argument is: where its memory lies, its shape, its framework, its stream.

A tensor of any framework becomes a ``Tensor``, from which a request is filled in. How that is done
is found out once for every type of object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from . import _dlpack
from .errors import Error, invalid, named

ITEM_BYTES = 4  # all tensors of a request but the scores: float32 or int32

_KIND_NAMES = {"f4": "float32", "f2": "float16", "bf2": "bfloat16", "i4": "int32", "i8": "int64"}

# What scores may be, with the numbers of the C headers' dtype.
SCORE_KINDS = {"f4": 0, "f2": 1, "bf2": 2}


def item_bytes(kind: str) -> int:
    """Of a kind of a request's tensors."""
    return int(kind[-1])


class Tensor:
    """One tensor of a request. ``cuda`` is the number of its GPU in this process, or -1."""

    __slots__ = ("cuda", "framework", "kind", "owner", "pointer", "shape", "stream", "strides")

    def __init__(
        self,
        pointer: int,
        shape: Sequence[int],
        strides: Sequence[int],
        kind: str,
        cuda: int,
        framework: str,
        owner: Any,
        stream: int | None = None,
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.strides = strides  # in elements
        self.kind = kind
        self.cuda = cuda
        self.framework = framework
        self.owner = owner
        self.stream = stream  # that the producer names; None: it names none

    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        last = 0
        for size, stride in zip(self.shape, self.strides):
            if size == 0:
                return 0
            last += (size - 1) * stride
        return (last + 1) * item_bytes(self.kind)


# ---- One reader for each framework ---------------------------------------------------------------


def _in_elements(steps: Sequence[int], shape: Sequence[int], item: int) -> tuple[int, ...]:
    """Strides in bytes as strides in elements."""
    for step, size in zip(steps, shape):
        if step % item != 0 and size > 1:
            raise invalid(
                f"elements are {step} bytes apart, which is no multiple of their {item} (a field of "
                "a structured array?): make it contiguous"
            )
    return tuple(step // item for step in steps)


def _read_numpy(array: Any) -> Tensor:
    interface = array.__array_interface__
    kind = interface["typestr"]
    shape = interface["shape"]
    strides = interface["strides"]
    if kind[0] == ">":
        raise invalid(f"an array has the byte order of other machines ({kind}): convert it")
    kind = kind[1:]
    if kind == "V2" and getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":
        kind = "bf2"  # of ml_dtypes, which NumPy itself has no name for
    if strides is None:
        strides = (shape[1], 1) if len(shape) == 2 else _dlpack.dense(shape)
    else:
        item = int(kind.lstrip("abcdefghijklmnopqrstuvwxyzUSV"))
        strides = _in_elements(strides, shape, item)
    return Tensor(interface["data"][0], shape, strides, kind, -1, "numpy", array)


def _read_cuda_interface(array: Any, framework: str) -> Tensor:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise invalid("a tensor has a mask (__cuda_array_interface__): masks are not supported")
    kind = interface["typestr"].lstrip("<=|")
    shape = interface["shape"]
    strides = interface.get("strides")
    if strides is None:
        strides = _dlpack.dense(shape)
    else:
        strides = _in_elements(strides, shape, int(kind[1:]))
    stream = interface.get("stream")
    return Tensor(
        interface["data"][0] or 0,
        shape,
        strides,
        kind,
        _device_of(array),
        framework,
        array,
        None if stream is None else stream_handle(stream),
    )


def _device_of(array: Any) -> int:
    """The GPU of an object whose interface does not name one."""
    getter = getattr(array, "__dlpack_device__", None)
    if getter is not None:
        return int(getter()[1])
    device = getattr(array, "device", None)
    number = getattr(device, "id", None)
    return number if isinstance(number, int) else 0


def _read_dlpack(array: Any, framework: str) -> Tensor:
    device_type, _ = array.__dlpack_device__()
    # 1 is CUDA's default stream in the protocol: the data is ready in its order.
    capsule = array.__dlpack__(stream=1) if device_type == _dlpack.CUDA else array.__dlpack__()
    pointer, shape, strides, kind, device_type, device = _dlpack.read(capsule)
    if device_type == _dlpack.CUDA_HOST:
        raise named("NOT_EXPORTABLE", "a tensor is pinned host memory: move it to the device")
    if device_type == _dlpack.CUDA_MANAGED:
        raise named("NOT_EXPORTABLE", "a tensor is managed memory: allocate it on the device")
    if device_type not in (_dlpack.CPU, _dlpack.CUDA):
        raise named(
            "UNSUPPORTED", f"a tensor is on a device of DLPack's type {device_type}: 1 (CPU) and 2 "
            "(CUDA) are supported"
        )
    cuda = device if device_type == _dlpack.CUDA else -1
    stream = 0 if cuda >= 0 else None
    # The capsule keeps the memory, the array its owner: both stay.
    return Tensor(pointer, shape, strides, kind, cuda, framework, (array, capsule), stream)


def _torch_reader() -> Callable[[Any], Tensor]:
    import torch

    kinds = {
        torch.float32: "f4", torch.float16: "f2", torch.bfloat16: "bf2", torch.int32: "i4",
        torch.int64: "i8",
    }

    def read(tensor: Any) -> Tensor:
        kind = kinds.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
        device = tensor.device
        if device.type == "cuda":
            cuda = device.index
        elif device.type == "cpu":
            cuda = -1
        else:
            raise named("UNSUPPORTED", f"a tensor is on device {device}, not on a CPU or CUDA GPU")
        return Tensor(
            tensor.data_ptr(), tensor.shape, tensor.stride(), kind, cuda, "torch", tensor
        )

    return read


# Frameworks by the name of the package that a type comes from; for results in the caller's own.
_FRAMEWORKS = {"torch": "torch", "cupy": "cupy", "numba": "numba", "jaxlib": "jax", "jax": "jax"}
_framework_of_type: dict[type, str] = {}
_readers: dict[type, Callable[[Any], Tensor]] = {}


def _framework_of(kind: type) -> str:
    known = _framework_of_type.get(kind)
    if known is None:
        packages = [(base.__module__ or "").partition(".")[0] for base in kind.__mro__]
        known = next((_FRAMEWORKS[name] for name in packages if name in _FRAMEWORKS), "topkd")
        _framework_of_type[kind] = known
    return known


def _find_reader(value: Any) -> Callable[[Any], Tensor]:
    kind = type(value)
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return _torch_reader()
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray):
        return _read_numpy
    framework = _framework_of(kind)
    # CuPy and Numba say in the interface which stream the data is ready in; JAX does not, and its
    # DLPack side orders it before the default stream.
    if framework != "jax" and getattr(value, "__cuda_array_interface__", None) is not None:
        return lambda array: _read_cuda_interface(array, framework)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return lambda array: _read_dlpack(array, framework)
    if hasattr(value, "__array_interface__"):
        return _read_numpy
    raise invalid(
        f"{kind.__module__}.{kind.__qualname__} is no tensor: it has neither __dlpack__ nor "
        "__cuda_array_interface__ nor __array_interface__"
    )


def read(value: Any, name: str) -> Tensor:
    """Describes a tensor; ``name`` is the argument's, for error texts."""
    reader = _readers.get(type(value))
    if reader is None:
        try:
            reader = _find_reader(value)
        except Exception as error:
            raise _about(name, error) from None
        _readers[type(value)] = reader
    try:
        return reader(value)
    except (Error, ValueError, RuntimeError, BufferError, TypeError, AttributeError) as error:
        raise _about(name, error) from error


def _about(name: str, error: Exception) -> Exception:
    code = getattr(error, "name", "TOPKD_E_INVALID").removeprefix("TOPKD_E_")
    return named(code, f"{name}: {getattr(error, 'message', error)}")


def is_tensor(value: Any) -> bool:
    return type(value) in _readers or any(
        hasattr(value, name)
        for name in ("__dlpack__", "__cuda_array_interface__", "__array_interface__")
    )


# ---- Checks --------------------------------------------------------------------------------------


def check_kind(tensor: Tensor, kind: str, name: str) -> None:
    if tensor.kind != kind:
        got = _KIND_NAMES.get(tensor.kind, tensor.kind)
        raise invalid(f"{name}: dtype {got}, {_KIND_NAMES[kind]} is needed: convert it first")


def check_matrix(tensor: Tensor, kind: str, rows: int, name: str) -> tuple[int, int]:
    """Of a matrix with this many rows (-1: any): its columns and row stride."""
    check_kind(tensor, kind, name)
    if len(tensor.shape) != 2:
        raise invalid(f"{name}: {len(tensor.shape)} dimensions, 2 are needed ([rows, columns])")
    num_rows, columns = tensor.shape
    if rows >= 0 and num_rows != rows:
        raise invalid(f"{name}: {num_rows} rows, the scores have {rows}")
    stride, step = tensor.strides
    if step != 1 and columns > 1:
        raise invalid(
            f"{name}: neighbours in a row are {step} elements apart, they must be dense: make it "
            "contiguous"
        )
    if stride < columns and num_rows > 1:
        raise invalid(f"{name}: rows are {stride} elements apart, they hold {columns}")
    return columns, stride if num_rows > 1 else columns


def check_vector(tensor: Tensor, kind: str, rows: int, name: str) -> None:
    check_kind(tensor, kind, name)
    shape = tuple(tensor.shape)
    if shape not in ((rows,), (rows, 1)):
        raise invalid(f"{name}: shape {shape}, ({rows},) is needed")
    if rows > 1 and tensor.strides[0] != 1:
        raise invalid(f"{name}: elements are {tensor.strides[0]} apart, they must be dense")


class Scores:
    """A matrix of scores, or a vector as its one row.

    Attributes:
        dtype: the C headers' number of their type.
        shape: the rows as a shape; () for one row without a dimension.
    """

    __slots__ = ("dtype", "rows", "shape", "stride", "width")

    def __init__(self, tensor: Tensor) -> None:
        dtype = SCORE_KINDS.get(tensor.kind)
        if dtype is None:
            got = _KIND_NAMES.get(tensor.kind, tensor.kind)
            raise invalid(
                f"scores: dtype {got}, float32, float16 or bfloat16 is needed: convert it first"
            )
        self.dtype = dtype
        self.shape: tuple[int, ...] = ()
        self.rows = 1
        if len(tensor.shape) == 1:
            check_vector(tensor, tensor.kind, tensor.shape[0], "scores")
            self.width = self.stride = tensor.shape[0]
        else:
            self.width, self.stride = check_matrix(tensor, tensor.kind, -1, "scores")
            self.rows = tensor.shape[0]
            self.shape = (self.rows,)


# ---- Streams -------------------------------------------------------------------------------------


def stream_handle(stream: Any) -> int:
    """The CUDA handle of a stream: of torch, CuPy, Numba, a number, or ``__cuda_stream__``."""
    if isinstance(stream, int):
        # 1 and 2 are CUDA's own handles of the default streams, legacy and of the thread.
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch; CuPy
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    handle = getattr(getattr(stream, "handle", None), "value", False)  # Numba: a c_void_p
    if handle is None or (isinstance(handle, int) and handle is not False):
        return handle or 0
    raise invalid(
        f"stream: a {type(stream).__name__} is no CUDA stream (a number, or an object of torch, "
        "CuPy, Numba, or with __cuda_stream__)"
    )


def is_unordered(value: Any) -> bool:
    """Whether the framework works in streams of its own that it does not name: what comes back must
    be there already."""
    return _framework_of(type(value)) == "jax"


def current_stream(tensor: Tensor) -> int:
    """The stream in whose order a tensor's framework works now."""
    if tensor.framework == "torch":
        return torch_stream()(tensor.cuda)
    return tensor.stream or 0


@lru_cache(maxsize=1)
def torch_stream() -> Callable[[int], int]:
    """From the number of a GPU to the handle of PyTorch's current stream there."""
    import torch

    # What compiled models call: a microsecond less than by way of a Stream object.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return raw  # type: ignore[no-any-return]
    return lambda cuda: int(torch.cuda.current_stream(cuda).cuda_stream)
