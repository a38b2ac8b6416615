"""Where the results of a selection lie: the caller's own tensors, or new ones in his framework."""

from __future__ import annotations

import ctypes as c
import sys
from typing import Any

from . import _array, _tensors
from ._call import Call, copy_rows
from ._tensors import ITEM_BYTES, Tensor
from .errors import Error, invalid, named


class Results:
    """Index tensor and, if wanted, values: where they lie and what the caller gets."""

    __slots__ = ("copies", "indices", "values")

    def __init__(self) -> None:
        self.indices: Any = None
        self.values: Any = None
        # The caller's tensors that get a copy of what the worker wrote, and where that lies.
        self.copies: list[tuple[Tensor, int]] = []

    def take(self) -> Any:
        """After success."""
        for tensor, pointer in self.copies:
            _copy_result(tensor, pointer)
        return self.indices if self.values is None else (self.indices, self.values)


def _copy_result(tensor: Tensor, pointer: int) -> None:
    columns = tensor.shape[-1]
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    source = Tensor(pointer, (rows, columns), (columns, 1), "i4", -1, "topkd", None)
    stride = tensor.strides[0] if len(tensor.shape) > 1 else columns
    copy_rows(tensor.pointer, stride, source, rows, columns)


def outputs(
    call: Call, like: Tensor, shape: tuple[int, ...], want_values: bool, out: Any
) -> Results:
    """Room for the results of a call: the caller's own (``out``), or new in its framework."""
    if call.request.rows == 0:
        return _none(like, shape, want_values, out)
    if out is not None:
        if not call.is_staging and not call.session.is_cuda:
            _refuse_plain(call, split_out(out, want_values))
        return _given(call, shape, want_values, out)
    if call.session.is_cuda:
        return _new_cuda(call, like, shape, want_values)
    lease = call.session.pool.try_lease(num_bytes(shape) * (2 if want_values else 1))
    if lease is None:
        return _new_plain(call, like, shape, want_values)
    return _new_cpu(call, lease, like, shape, want_values)


def _none(like: Tensor, shape: tuple[int, ...], want_values: bool, out: Any) -> Results:
    """No rows: nothing will be written, and nothing is registered."""
    results = Results()
    fields = [("indices", "i4"), ("values", "f4")][: 2 if want_values else 1]
    given = split_out(out, want_values) if out is not None else [None] * len(fields)
    for (field, kind), value in zip(fields, given):
        if value is None:
            value = empty_beside(like, shape, kind)
        else:
            read_out(value, kind, shape, "out")
        setattr(results, field, value)
    return results


def split_out(out: Any, want_values: bool) -> list[Any]:
    """``out`` as a list: the index tensor, and the values where they are wanted."""
    if not want_values:
        return [out]
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise invalid("out: with values=True a pair (indices, values) is needed")
    return list(out)


def read_out(value: Any, kind: str, shape: tuple[int, ...], name: str) -> tuple[Tensor, int]:
    """An output of the caller's and its row stride."""
    tensor = _tensors.read(value, name)
    if tuple(tensor.shape) != shape:
        raise invalid(f"{name}: shape {tuple(tensor.shape)}, the result has {shape}")
    if getattr(getattr(value, "flags", None), "writeable", True) is False:
        raise invalid(f"{name}: the array is read-only")
    if len(shape) == 2:
        return tensor, _tensors.check_matrix(tensor, kind, shape[0], name)[1]
    _tensors.check_vector(tensor, kind, shape[0], name)
    return tensor, shape[0]


def _refuse_plain(call: Call, out: list[Any]) -> None:
    for value in out:
        if call.session.pool.find(_tensors.read(value, "out").pointer) is None:
            raise named(
                "NOT_EXPORTABLE",
                "out: ordinary memory, which the daemon cannot map: make it with "
                "client.empty(...), or allow copies with Client(staging=True)",
            )


def _given(call: Call, shape: tuple[int, ...], want_values: bool, out: Any) -> Results:
    results = Results()
    refs = [("indices", "i4", call.request.indices), ("values", "f4", call.request.values)]
    for value, (field, kind, ref) in zip(split_out(out, want_values), refs):
        name = "out" if field == "indices" else "out[1]"
        tensor, stride = read_out(value, kind, shape, name)
        setattr(results, field, value)
        call.hold(tensor)
        if call.session.is_cuda or tensor.cuda >= 0 or call.session.pool.find(tensor.pointer):
            call.place(ref, tensor, stride, name, is_output=True)
        else:
            size = num_bytes(shape)
            lease = call.session.pool.lease(size, is_copy=True)
            call.keep.append(lease)
            call.buffers.append(lease.buffer)
            ref.region = lease.buffer.region
            results.copies.append((tensor, lease.buffer.pointer))
            call.note_staged(size)
    return results


def num_bytes(shape: tuple[int, ...]) -> int:
    size = ITEM_BYTES
    for sizes in shape:
        size *= sizes
    return size


def _new_plain(call: Call, like: Tensor, shape: tuple[int, ...], want_values: bool) -> Results:
    """The caller holds so many results already that this one gets ordinary memory, and a copy of
    what the worker writes."""
    made = []
    for kind in ("i4", "f4") if want_values else ("i4",):
        memory = (c.c_char * max(num_bytes(shape), 1))()
        array = _array.Array(c.addressof(memory), shape, kind, -1, memory)
        made.append(_array.wrap(array, like.framework))
    return _given(call, shape, want_values, made if want_values else made[0])


def _new_cpu(
    call: Call, lease: Any, like: Tensor, shape: tuple[int, ...], want_values: bool
) -> Results:
    """One buffer for both; the caller's arrays hold it, and with the last of them it comes back."""
    size = num_bytes(shape)
    buffer = lease.buffer
    call.buffers.append(buffer)
    results = Results()
    request = call.request
    request.indices.region = buffer.region
    results.indices = _over_lease(lease, 0, shape, "i4", like.framework)
    if want_values:
        request.values.region = buffer.region
        request.values.offset_bytes = size
        results.values = _over_lease(lease, size, shape, "f4", like.framework)
    return results


def _over_lease(
    lease: Any, offset: int, shape: tuple[int, ...], kind: str, framework: str
) -> Any:
    if framework == "numpy":
        return sys.modules["numpy"].ndarray(shape, kind, lease, offset)
    array = _array.Array(lease.buffer.pointer + offset, shape, kind, -1, lease)
    return _array.wrap(array, framework)


def _new_cuda(call: Call, like: Tensor, shape: tuple[int, ...], want_values: bool) -> Results:
    results = Results()
    results.indices = _new_cuda_one(call, call.request.indices, like, shape, "i4")
    if want_values:
        results.values = _new_cuda_one(call, call.request.values, like, shape, "f4")
    return results


def _new_cuda_one(call: Call, ref: Any, like: Tensor, shape: tuple[int, ...], kind: str) -> Any:
    made = call.made(lambda: _framework_empty(like, shape, kind))
    if made is not None:
        tensor = _tensors.read(made, "the result")
        try:
            call.place(ref, tensor, shape[-1], "the result", is_output=True)
        except Error as error:
            if not call.is_staging or error.name != "TOPKD_E_NOT_EXPORTABLE":
                raise
        else:
            call.hold(tensor)
            return made
    memory = call.device_memory(num_bytes(shape))
    ref.region = memory.region
    ref.stride = 0
    array = _array.Array(memory.pointer, shape, kind, like.cuda, memory)
    return _array.wrap(array, like.framework)


def _framework_empty(like: Tensor, shape: tuple[int, ...], kind: str) -> Any:
    """A new tensor of the caller's framework on its device, from its own allocator; None where it
    has none that could be used."""
    if like.framework == "torch":
        torch = sys.modules["torch"]
        dtype = torch.int32 if kind == "i4" else torch.float32
        return torch.empty(shape, dtype=dtype, device=like.owner.device)
    if like.framework == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.cuda):
            return cupy.empty(shape, dtype="int32" if kind == "i4" else "float32")
    return None


def empty_beside(like: Tensor, shape: tuple[int, ...], kind: str) -> Any:
    """A new tensor of the caller's framework beside the scores, from its own allocator where it has
    one."""
    if like.framework == "torch":
        import torch

        dtype = torch.int32 if kind == "i4" else torch.float32
        return torch.empty(shape, dtype=dtype, device=like.owner.device)
    if like.framework == "cupy":
        import cupy

        with cupy.cuda.Device(like.cuda):
            return cupy.empty(shape, dtype="int32" if kind == "i4" else "float32")
    if like.framework == "numpy":
        import numpy

        return numpy.empty(shape, kind)
    size = max(num_bytes(shape), 1)
    if like.cuda >= 0:
        from . import _cuda

        memory = _cuda.Memory(like.cuda, size)
        array = _array.Array(memory.pointer, shape, kind, like.cuda, memory)
    else:
        host = (c.c_char * (size + 64))()
        pointer = (c.addressof(host) + 63) & ~63  # what JAX wants to use memory in place
        array = _array.Array(pointer, shape, kind, -1, host)
    return _array.wrap(array, like.framework)
