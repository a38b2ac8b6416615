"""PyTorch tensors on a GPU, in the order of a stream: the short way of ``Client.select``.

The usual request of a server: tensors as the C library takes them, whose memory is registered. It is
filled in here, from a template that belongs to the options, in some 20 us; the long way (``_call.py``)
takes 60. Whatever is unusual, and whatever is wrong, goes the long way, which registers memory, copies,
or says what is the matter; so nothing is decided here but that a request is as usual.

Names of a closure and arguments of C that are converted once: attribute by attribute this is a third
of the time.
"""

from __future__ import annotations

import ctypes as c
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from . import _abi, _fork, _tensors
from ._call import Call
from ._session import Op, Session
from .errors import from_status

TEMPLATES_MAX = 64  # choice: sets of options that a client remembers
_LATER = ("TOPKD_E_BUSY", "TOPKD_E_TIMEOUT")  # too many in flight, or the session is renewed

# select(scores, lengths, page_table, row_offsets, out, options): the result, or None: the long way.
Select = Callable[..., Any]
# note(call, scores, options): after the long way went well.
Note = Callable[..., None]


def options_of(
    scores: Any, lengths: Any, k: int, order: str, ties: str, deterministic: bool, values: bool,
    page_table: Any, page_size: int | None, row_offsets: Any, out: Any, timeout: float | None,
) -> tuple[Any, ...] | None:
    """What a template belongs to; None: not for the short way."""
    dtype = getattr(scores, "dtype", None)
    if type(k) is not int or dtype is None:
        return None
    if lengths is not None and type(lengths) is not int:
        lengths = "tensor"
    return (
        lengths, k, values, dtype, order, ties, deterministic, page_size, timeout,
        page_table is None, row_offsets is None, out is None,
    )


def make_short_way(session: Session) -> tuple[Select, Note]:
    """For one session of a GPU, once PyTorch is there."""
    torch = sys.modules["torch"]
    tensor_type, int32, float32 = torch.Tensor, torch.int32, torch.float32
    item_bytes = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
    stream_of = _tensors.torch_stream()
    regions, regions_lock = session.regions.known()
    lock, ops, failures = session.lock, session.ops, session.failures
    monotonic = time.monotonic

    handle = c.c_void_p(session.handle)
    allocation, pointer = _abi.Allocation(), c.c_void_p()
    allocation_ref, pointer_ref = c.byref(allocation), c.byref(pointer)
    find = session.library["topkd_cuda_allocation"]
    find.argtypes = [c.c_void_p, c.c_void_p, c.c_uint64, c.c_void_p]
    start = session.library["topkd_select_stream_try"]
    start.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]

    # Where a request has its tensors: region, offset and stride in a row.
    pack = struct.Struct("=QQq").pack_into
    fields = _abi.SelectRequest
    at_scores, at_lengths = fields.scores.offset, fields.lengths.offset
    at_indices, at_values = fields.indices.offset, fields.values.offset
    at_table, at_offsets = fields.page_table.offset, fields.row_offsets.offset
    pack_size, pack_one = struct.Struct("=II").pack_into, struct.Struct("=I").pack_into
    at_rows = fields.rows.offset
    assert fields.width.offset == at_rows + 4
    at_table_width = fields.page_table_width.offset

    # Bytes of a request and the pointer that C gets to them; used with the session's lock.
    templates: dict[tuple[Any, ...], tuple[bytearray, Any]] = {}

    def place(
        request: bytearray, at: int, tensor: Any, span: int, stride: int, is_output: bool, now: float
    ) -> bool:
        """With the lock of the regions: names a tensor in the request, if its memory is registered."""
        address = tensor.data_ptr()
        if find(handle, address, span, allocation_ref) != 0:
            return False
        region = regions.get((allocation.base or 0, allocation.size_bytes, allocation.id))
        if region is None or address < region.base or (is_output and not region.is_writable):
            return False
        region.last_use = now
        pack(request, at, region.handle, address - region.base, stride)
        return True

    def is_vector(tensor: Any, rows: int, device: int) -> bool:
        return (
            type(tensor) is tensor_type and tensor.dtype is int32 and tensor.shape == (rows,)
            and tensor.get_device() == device and (rows == 1 or tensor.stride(0) == 1)
        )

    def row_stride(tensor: Any, dtype: Any, rows: int, columns: int, device: int) -> int:
        """Of a matrix as a request has it; 0 when it is none."""
        if (
            type(tensor) is not tensor_type or tensor.dtype is not dtype
            or tensor.get_device() != device or tensor.shape != (rows, columns)
        ):
            return 0
        stride, step = tensor.stride()
        if rows == 1:
            stride = columns
        return int(stride) if step == 1 and stride >= columns else 0

    def select(
        scores: Any, lengths: Any, page_table: Any, row_offsets: Any, out: Any,
        options: tuple[Any, ...],
    ) -> Any:
        try:
            template = templates.get(options)
        except TypeError:  # something among them has no hash
            return None
        if template is None or type(scores) is not tensor_type:
            return None
        shape, device = scores.shape, scores.get_device()
        if len(shape) != 2 or device < 0:
            return None
        rows, width = shape
        stride, step = scores.stride()
        if rows == 1:
            stride = width
        if rows == 0 or width == 0 or step != 1 or stride < width:
            return None
        request, request_ref = template
        kind, k, want_values, dtype = options[:4]
        if kind == "tensor" and not is_vector(lengths, rows, device):
            return None
        if row_offsets is not None and not is_vector(row_offsets, rows, device):
            return None
        table_stride = columns = 0
        if page_table is not None:
            if type(page_table) is tensor_type and page_table.dim() == 2:
                columns = page_table.shape[1]
                table_stride = row_stride(page_table, int32, rows, columns, device)
            if table_stride == 0:
                return None
        values, values_stride = None, k
        if out is None:
            indices, indices_stride = scores.new_empty((rows, k), dtype=int32), k
            if want_values:
                values = scores.new_empty((rows, k), dtype=float32)
        else:
            indices = out
            if want_values:
                if type(out) is not tuple or len(out) != 2:
                    return None
                indices, values = out
                values_stride = row_stride(values, float32, rows, k, device)
            indices_stride = row_stride(indices, int32, rows, k, device)
            if indices_stride == 0 or values_stride == 0:
                return None
        stream = stream_of(device)
        with lock:  # the session is not closed meanwhile
            if session.is_closed or session.generation != _fork.generation:
                session.check()
            session.reap()
            if failures:
                session.raise_failure()
            now = monotonic()
            with regions_lock:  # none of them goes before the request is on its way
                last = rows - 1
                if not (
                    place(request, at_scores, scores, (last * stride + width) * item_bytes[dtype],
                          stride, False, now)
                    and place(request, at_indices, indices, 4 * (last * indices_stride + k),
                              indices_stride, True, now)
                    and (kind != "tensor"
                         or place(request, at_lengths, lengths, 4 * rows, 0, False, now))
                    and (values is None
                         or place(request, at_values, values, 4 * (last * values_stride + k),
                                  values_stride, True, now))
                    and (row_offsets is None
                         or place(request, at_offsets, row_offsets, 4 * rows, 0, False, now))
                    and (page_table is None
                         or place(request, at_table, page_table,
                                  4 * (last * table_stride + columns), table_stride, False, now))
                ):
                    return None
                pack_size(request, at_rows, rows, width)
                if page_table is not None:
                    pack_one(request, at_table_width, columns)
                status = start(handle, request_ref, stream, pointer_ref)
            if status != 0:
                error = from_status(status)
                if error.name in _LATER:
                    return None  # the long way waits
                raise error
            address = pointer.value or 0
            # Nothing to keep: PyTorch's memory is handed out again in the order of its stream.
            ops[address] = Op(address, None, [])
        return indices if values is None else (indices, values)

    def note(call: Call, scores: Any, options: tuple[Any, ...]) -> None:
        is_usual = type(scores) is tensor_type and not call.keep and call.num_staged == 0
        if not is_usual or call.request.lengths_mode == _abi.LENGTHS_HOST:
            return
        request = bytearray(bytes(call.request))
        view = (c.c_char * len(request)).from_buffer(request)
        with lock:
            if len(templates) >= TEMPLATES_MAX:
                templates.clear()
            try:
                templates[options] = (request, c.byref(view))
            except TypeError:
                pass  # an option without a hash: the long way it is

    return select, note
