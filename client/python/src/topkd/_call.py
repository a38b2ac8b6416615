"""One selection through a daemon: from arguments to a request of the C library."""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from . import _abi, _tensors
from ._ahead import Ahead
from ._buffers import Buffer, DeviceMemory
from ._regions import Region
from ._session import Session
from ._tensors import Tensor, item_bytes
from .errors import Error, from_status, invalid, named


# Frameworks whose allocators are.
_STREAM_ORDERED = ("torch", "cupy")


class Call:
    """A request under construction. ``close`` it when the request is on its way, or was not sent."""

    __slots__ = ("_ahead", "_begin", "_num_made", "_staged_bytes", "buffers", "is_lane",
                 "is_renewing", "is_staging", "keep", "num_staged", "regions", "request", "session",
                 "stream")

    def __init__(
        self, session: Session, is_staging: bool, stream: int, is_lane: bool = False,
        ahead: Ahead | None = None,
    ) -> None:
        self._ahead = ahead
        self._begin = time.monotonic()
        self._num_made = 0  # of what `_ahead` has, in the order in which it is asked for
        self._staged_bytes = 0
        self.is_renewing = False  # it was not taken, because the session is renewed
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

    def take_back(self) -> None:
        """Of a request that is made once more."""
        self.session.staged_bytes -= self._staged_bytes
        self.close()

    def seconds_left(self) -> float:
        """Until its deadline, counted from when it was made."""
        timeout_s = self.request.timeout_ms / 1e3 or self.session.timeout_s
        return self._begin + timeout_s - time.monotonic()

    def hold(self, tensor: Tensor) -> None:
        """Keeps a tensor's memory until the selection has ended. Where the allocator hands memory out
        again in the order of its stream, it must not be kept: the selection is in that order, and
        the next step wants the memory."""
        if self.is_lane or not self.session.is_cuda or tensor.framework not in _STREAM_ORDERED:
            self.keep.append(tensor.owner)

    def note_staged(self, size_bytes: int) -> None:
        self.num_staged += 1
        self._staged_bytes += size_bytes
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
            region = self._region_of(tensor, is_output)
        except Error as error:
            if is_output or not self.is_staging or error.name != "TOPKD_E_NOT_EXPORTABLE":
                raise named(error.name.removeprefix("TOPKD_E_"), f"{name}: {error.message}") from None
            self._stage_cuda(ref, tensor)
            return
        self.regions.append(region)
        ref.region = region.handle
        ref.offset_bytes = tensor.pointer - region.base

    def _region_of(self, tensor: Tensor, is_output: bool) -> Region:
        if self._ahead is None:
            return self.session.regions.acquire(tensor, is_output)
        return self._ahead.region_of(tensor, is_output)

    def device_memory(self, size_bytes: int) -> DeviceMemory:
        """Kept as long as the selection runs."""
        if self._ahead is None:
            memory = self.session.device_memory(size_bytes)
        else:
            memory = self._ahead.device_memory(self._num_made, size_bytes)
            self._num_made += 1
        self.keep.append(memory)
        return memory

    def made(self, make: Callable[[], Any]) -> Any:
        """What ``make`` returns; of a request that is made once more, what it returned then."""
        if self._ahead is None:
            return make()
        self._num_made += 1
        return self._ahead.made(self._num_made - 1, make)

    def _stage_cuda(self, ref: Any, tensor: Tensor) -> None:
        """A copy in the stream's order, gaps between the rows included."""
        span = tensor.span()
        memory = self.device_memory(span)
        status = self.session.library.topkd_buffer_copy(
            memory.handle, 0, tensor.pointer, span, self.stream
        )
        if status != 0:
            raise from_status(status)
        self.note_staged(span)
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
