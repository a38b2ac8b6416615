"""One selection through a daemon: from arguments to a request of the C library, and its results."""

from __future__ import annotations

import ctypes as c
import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from . import _abi, _array, _tensors
from ._buffers import Buffer
from ._regions import Region
from ._session import Session
from ._tensors import ITEM_BYTES, Tensor, item_bytes
from .errors import Error, from_status, invalid, named


# Frameworks whose allocators are.
_STREAM_ORDERED = ("torch", "cupy")


class Call:
    """A request under construction. ``close`` it when the request is on its way, or was not sent."""

    __slots__ = ("buffers", "is_lane", "is_staging", "keep", "num_staged", "regions", "request", "session",
                 "stream")

    def __init__(
        self, session: Session, is_staging: bool, stream: int, is_lane: bool = False
    ) -> None:
        self.session = session
        self.request = _abi.SelectRequest()
        self.is_lane = is_lane
        self.is_staging = is_staging
        self.stream = stream
        self.num_staged = 0  # tensors that were, or will be, copied
        self.keep: list[Any] = []  # what must live as long as the selection runs
        self.regions: list[Region] = []  # acquired
        self.buffers: list[Buffer] = []  # that the worker reads or writes

    def close(self) -> None:
        for region in self.regions:
            self.session.regions.release(region)
        self.regions.clear()

    def hold(self, tensor: Tensor) -> None:
        """Keeps a tensor's memory until the selection has ended. Where the allocator hands memory out
        again in the order of its stream, it must not be kept: the selection is in that order, and
        the next step wants the memory."""
        if self.is_lane or not self.session.is_cuda or tensor.framework not in _STREAM_ORDERED:
            self.keep.append(tensor.owner)

    def note_staged(self, size_bytes: int) -> None:
        self.num_staged += 1
        self.session.staged_bytes += size_bytes

    # ---- Where a tensor lies ---------------------------------------------------------------------

    def place(
        self, ref: Any, tensor: Tensor, stride: int, name: str, is_output: bool = False
    ) -> None:
        """Sets a struct topkd_tensor; copies what cannot be read in place, if that is allowed."""
        ref.stride = stride
        if self.session.is_cuda:
            self._place_cuda(ref, tensor, name, is_output)
        else:
            self._place_cpu(ref, tensor, name)

    def _place_cpu(self, ref: Any, tensor: Tensor, name: str) -> None:
        if tensor.cuda >= 0:
            raise named(
                "NOT_VISIBLE",
                f"{name}: a tensor on GPU {tensor.cuda}, but the session's device is the CPU: open "
                'the client with device="GPU-..." (topkctl devices lists them)',
            )
        buffer = self.session.pool.find(tensor.pointer)
        if buffer is None:
            self._stage_cpu(ref, tensor, name)
            return
        self.buffers.append(buffer)
        ref.region = buffer.region
        ref.offset_bytes = tensor.pointer - buffer.pointer

    def _stage_cpu(self, ref: Any, tensor: Tensor, name: str) -> None:
        if not self.is_staging:
            raise named(
                "NOT_EXPORTABLE",
                f"{name}: ordinary memory, which the daemon cannot map: make the array with "
                "client.empty(...), or allow copies with Client(staging=True)",
            )
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        rows = tensor.shape[0]
        size = max(rows * columns * item_bytes(tensor.kind), 1)
        lease = self.session.pool.lease(size, is_copy=True)
        copy_rows(lease.buffer.pointer, columns, tensor, rows, columns)
        self.note_staged(size)
        self.keep.append(lease)
        self.buffers.append(lease.buffer)
        ref.region = lease.buffer.region
        ref.stride = 0

    def _place_cuda(self, ref: Any, tensor: Tensor, name: str, is_output: bool) -> None:
        if tensor.cuda < 0:
            raise named(
                "NOT_VISIBLE",
                f"{name}: a tensor in host memory, but the session's device is {self.session.device}"
                ': move it there, or open the client with device="cpu"',
            )
        try:
            region = self.session.regions.acquire(tensor, is_output)
        except Error as error:
            if is_output or not self.is_staging or error.name != "TOPKD_E_NOT_EXPORTABLE":
                raise named(error.name.removeprefix("TOPKD_E_"), f"{name}: {error.message}") from None
            self._stage_cuda(ref, tensor)
            return
        self.regions.append(region)
        ref.region = region.handle
        ref.offset_bytes = tensor.pointer - region.base

    def _stage_cuda(self, ref: Any, tensor: Tensor) -> None:
        """A copy in the stream's order, gaps between the rows included."""
        span = tensor.span()
        memory = self.session.device_memory(span)
        status = self.session.library.topkd_buffer_copy(
            memory.handle, 0, tensor.pointer, span, self.stream
        )
        if status != 0:
            raise from_status(status)
        self.note_staged(span)
        self.keep.append(memory)
        ref.region = memory.region

    # ---- Arguments -------------------------------------------------------------------------------

    def set_lengths(self, lengths: Any, rows: int) -> None:
        """None: every row is full. A number: of every row. Else int32 [rows], here or there."""
        request = self.request
        if lengths is None:
            return
        if isinstance(lengths, Integral):
            request.lengths_mode = _abi.LENGTHS_ALL
            request.length_all = clamp(int(lengths))
            return
        if not _tensors.is_tensor(lengths):
            self._set_host_lengths(host_lengths(lengths, rows), rows)
            return
        tensor = _tensors.read(lengths, "lengths")
        if tensor.cuda < 0 and tensor.kind == "i8":
            self._set_host_lengths(host_lengths(lengths.tolist(), rows), rows)
            return
        _tensors.check_vector(tensor, "i4", rows, "lengths")
        self.hold(tensor)
        in_message = rows <= _abi.LENGTHS_HOST_MAX and tensor.cuda < 0
        if in_message and not self._is_shared(tensor):
            request.lengths_mode = _abi.LENGTHS_HOST
            request.lengths_host = tensor.pointer
            return
        request.lengths_mode = _abi.LENGTHS_REGION
        self.place(request.lengths, tensor, 0, "lengths")

    def _is_shared(self, tensor: Tensor) -> bool:
        return not self.session.is_cuda and self.session.pool.find(tensor.pointer) is not None

    def _set_host_lengths(self, lengths: Any, rows: int) -> None:
        request = self.request
        pointer = c.addressof(lengths)
        self.keep.append(lengths)
        if rows <= _abi.LENGTHS_HOST_MAX:
            request.lengths_mode = _abi.LENGTHS_HOST
            request.lengths_host = pointer
            return
        request.lengths_mode = _abi.LENGTHS_REGION
        tensor = Tensor(pointer, (rows,), (1,), "i4", -1, "topkd", lengths)
        self.place(request.lengths, tensor, 0, "lengths")

    def set_page_table(self, page_table: Any, page_size: int | None, rows: int) -> None:
        if page_table is None:
            if page_size is not None:
                raise invalid(f"page_size {page_size} without a page_table")
            return
        if page_size is None:
            raise invalid("page_table without page_size: how many positions has a page?")
        tensor = _tensors.read(page_table, "page_table")
        columns, stride = _tensors.check_matrix(tensor, "i4", rows, "page_table")
        self.hold(tensor)
        self.request.page_table_width = columns
        self.request.page_size = positive(page_size, "page_size")
        self.place(self.request.page_table, tensor, stride, "page_table")

    def set_row_offsets(self, row_offsets: Any, rows: int) -> None:
        if row_offsets is None:
            return
        tensor = _tensors.read(row_offsets, "row_offsets")
        _tensors.check_vector(tensor, "i4", rows, "row_offsets")
        self.hold(tensor)
        self.place(self.request.row_offsets, tensor, 0, "row_offsets")


# ---- Small things --------------------------------------------------------------------------------


def copy_rows(to: int, to_stride: int, tensor: Tensor, rows: int, columns: int) -> None:
    """Copies a matrix or vector between places in host memory."""
    item = item_bytes(tensor.kind)
    stride = tensor.strides[0]
    if len(tensor.shape) == 1:
        rows, columns, stride, to_stride = 1, rows, rows, rows
    if stride == columns == to_stride or rows == 1:
        c.memmove(to, tensor.pointer, rows * columns * item)
        return
    for row in range(rows):
        c.memmove(
            to + row * to_stride * item, tensor.pointer + row * stride * item, columns * item
        )


def clamp(length: int) -> int:
    """Lengths below 0 count as 0 and those above the width as the width: the same after this."""
    return min(max(length, 0), 0x7FFFFFFF)


def host_lengths(lengths: Any, rows: int) -> Any:
    """A sequence of numbers as int32 memory."""
    if not isinstance(lengths, Sequence):
        raise invalid(f"lengths: a {type(lengths).__name__} is no number, sequence or tensor")
    if len(lengths) != rows:
        raise invalid(f"lengths: {len(lengths)} numbers, the scores have {rows} rows")
    try:
        return (c.c_int32 * max(rows, 1))(*(clamp(length) for length in lengths))
    except TypeError as error:
        raise invalid(f"lengths: {error}") from None


def positive(value: Any, name: str) -> int:
    """A number that fits the request; the C library knows the real limits."""
    if not isinstance(value, Integral) or not 0 <= int(value) <= 0xFFFFFFFF:
        raise invalid(f"{name} is {value!r}, a number from 1 is needed")
    return int(value)


def timeout_ms(timeout: float | None) -> int:
    if timeout is None:
        return 0
    if not 0 < timeout <= 4_000_000:
        raise invalid(f"timeout is {timeout!r} seconds: above 0, at most 4000000, or None")
    return max(1, int(timeout * 1000))


def choice(value: str, names: dict[str, int], what: str) -> int:
    try:
        return names[value]
    except (KeyError, TypeError):
        raise invalid(f"{what} is {value!r}, one of {', '.join(names)} is needed") from None


# ---- Results -------------------------------------------------------------------------------------


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
    made = _framework_empty(like, shape, kind)
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
    memory = call.session.device_memory(num_bytes(shape))
    call.keep.append(memory)
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
