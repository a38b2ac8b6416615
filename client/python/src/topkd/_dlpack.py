"""The DLPack protocol in ctypes: reading the tensors of others, handing out ours."""

from __future__ import annotations

import ctypes as c
import itertools
from typing import Any, ClassVar

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
_TO_KIND = {
    (_INT, 32): "i4", (_INT, 64): "i8", (_FLOAT, 32): "f4", (_FLOAT, 16): "f2", (_BFLOAT, 16): "bf2",
}
_FROM_KIND = {kind: code for code, kind in _TO_KIND.items()}
_CODE_NAMES = {_INT: "int", _UINT: "uint", _FLOAT: "float", _BFLOAT: "bfloat", 6: "bool"}


class _Tensor(c.Structure):
    """DLTensor."""

    _fields_: ClassVar = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


_Function = c.CFUNCTYPE(None, c.c_void_p)


class _Managed(c.Structure):
    """DLManagedTensor."""

    _fields_: ClassVar = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p)]


_api = c.pythonapi
_api.PyCapsule_New.restype = c.py_object
_api.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
_api.PyCapsule_GetPointer.restype = c.c_void_p
_api.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
_api.PyCapsule_IsValid.restype = c.c_int
_api.PyCapsule_IsValid.argtypes = [c.py_object, c.c_char_p]

Layout = tuple[int, tuple[int, ...], tuple[int, ...], str, int, int]


def read(capsule: Any) -> Layout:
    """Pointer, shape, strides in elements, kind ("f4", or a name that is none of ours), device type
    and device number of a capsule. The memory is there while the capsule is."""
    managed = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = dense(shape)
    kind = _TO_KIND.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if kind is None:
        kind = f"{_CODE_NAMES.get(tensor.code, 'code ' + str(tensor.code))}{tensor.bits}"
    pointer = (tensor.data or 0) + tensor.byte_offset
    return pointer, shape, strides, kind, tensor.device_type, tensor.device_id


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a tensor without gaps."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


# What consumers hold: number -> everything that must stay until they call the deleter.
_held: dict[int, tuple[Any, ...]] = {}
_numbers = itertools.count(1)


def _delete(address: int) -> None:
    _held.pop(_Managed.from_address(address).context or 0, None)


def _drop_capsule(capsule: int) -> None:
    """A capsule that nobody consumed is deleted: what it holds goes."""
    # The object is being destroyed and must not be referenced as one: by its address only.
    if _raw_is_valid(capsule, b"dltensor"):
        _delete(_raw_pointer(capsule, b"dltensor"))


_raw_is_valid = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(("PyCapsule_GetPointer", _api))


# Kept for ever: C code has their addresses.
_delete_pointer = _Function(_delete)
_drop_pointer = _Function(_drop_capsule)


def make(layout: Layout, owner: Any) -> Any:
    """A capsule over memory that lives as long as ``owner``, which the consumer keeps alive."""
    pointer, shape, strides, kind, device_type, device_id = layout
    number = next(_numbers)
    dims = (c.c_int64 * len(shape))(*shape)
    steps = (c.c_int64 * len(shape))(*strides)
    code, bits = _FROM_KIND[kind]
    managed = _Managed()
    managed.tensor = _Tensor(
        data=pointer,
        device_type=device_type,
        device_id=device_id,
        ndim=len(shape),
        code=code,
        bits=bits,
        lanes=1,
        shape=c.cast(dims, c.POINTER(c.c_int64)),
        strides=c.cast(steps, c.POINTER(c.c_int64)),
    )
    managed.context = number
    managed.deleter = c.cast(_delete_pointer, c.c_void_p).value
    _held[number] = (managed, dims, steps, owner)
    destructor = c.cast(_drop_pointer, c.c_void_p).value
    return _api.PyCapsule_New(c.addressof(managed), b"dltensor", destructor)
