"""Selection in this process, without a daemon: libtopksel on arrays of the host and of GPUs."""

from __future__ import annotations

import ctypes as c
import math
import threading
from numbers import Integral
from typing import Any

from . import _abi, _array, _cuda, _fork, _tensors
from ._call import choice, clamp, host_lengths, positive
from ._results import empty_beside, read_out, split_out
from ._library import selector_library
from ._tensors import Tensor
from .errors import invalid, named

DETAIL_BYTES = 192  # TOPK_DETAIL_SIZE
_INT32_MAX = 0x7FFFFFFF

# The statuses of topk_select.h, in its order, by the names of those of topkd_status.h.
_STATUSES = (
    "OK", "INVALID", "UNSUPPORTED", "NO_MEMORY", "SYSTEM", "NO_DEVICE", "DEVICE_FAULT", "CANCELLED",
)


def raise_status(status: int, detail: Any) -> None:
    if status == 0:
        return
    text = detail.value.decode(errors="replace")
    if not text:
        text = selector_library().topk_strerror(status).decode()
    raise named(_STATUSES[status] if status < len(_STATUSES) else "SYSTEM", text)


# ---- The pool of threads -------------------------------------------------------------------------


class _Threads:
    """The CPU selector's pool, made at the first use, and anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: int | None = None
        self._generation = 0
        self._num_threads = 0

    def set(self, num_threads: int) -> None:
        with self._lock:
            self._num_threads = num_threads
            # The old one stays: others may be selecting with it.
            self._pool = None

    def get(self) -> int:
        pool = self._pool
        if pool is not None and self._generation == _fork.generation:
            return pool
        with self._lock:
            config = _abi.CpuConfig(num_threads=self._num_threads)
            made, detail = c.c_void_p(), c.create_string_buffer(DETAIL_BYTES)
            status = selector_library().topk_cpu_create(c.byref(config), c.byref(made), detail)
            raise_status(status, detail)
            self._pool = made.value or 0
            self._generation = _fork.generation
            return self._pool


_threads = _Threads()


def set_threads(num_threads: int) -> None:
    """How many threads ``select`` uses for arrays in host memory; 0 (as at the start): one for each
    processor that the process may use. At most 256."""
    if not isinstance(num_threads, int) or not 0 <= num_threads <= 256:
        raise invalid(f"num_threads is {num_threads!r}: 0 ... 256")
    _threads.set(num_threads)


# ---- Arguments -----------------------------------------------------------------------------------


class _Request:
    """topk_args and what its pointers need to live."""

    def __init__(self, scores: Tensor) -> None:
        self.args = _abi.SelectorArgs()
        self.cuda = scores.cuda
        self.keep: list[Any] = [scores.owner]
        self._item_bytes = _tensors.item_bytes(scores.kind)
        checked = _tensors.Scores(scores)
        self.dtype, self.shape = checked.dtype, checked.shape
        rows, width, stride = checked.rows, checked.width, checked.stride
        if width == 0:
            raise invalid(f"scores: shape {tuple(scores.shape)}: rows have at least 1 score")
        if rows > _INT32_MAX or width > _INT32_MAX:
            raise invalid(f"scores: {rows} rows of {width} scores: at most {_INT32_MAX} of each")
        self.args.scores, self.args.row_stride = scores.pointer, stride
        self.args.num_rows, self.args.width = rows, width

    def _read(self, value: Any, name: str) -> Tensor:
        tensor = _tensors.read(value, name)
        if tensor.cuda != self.cuda:
            raise named(
                "NOT_VISIBLE",
                f"{name}: on {_place(tensor.cuda)}, the scores are on {_place(self.cuda)}",
            )
        self.keep.append(tensor.owner)
        return tensor

    def set_lengths(self, lengths: Any) -> None:
        args = self.args
        args.length_all = args.width
        if lengths is None:
            return
        if isinstance(lengths, Integral):
            args.length_all = clamp(int(lengths))
            return
        rows = args.num_rows
        if _tensors.is_tensor(lengths):
            tensor = _tensors.read(lengths, "lengths")
            if tensor.cuda >= 0 or (self.cuda < 0 and tensor.kind != "i8"):
                tensor = self._read(lengths, "lengths")
                _tensors.check_vector(tensor, "i4", rows, "lengths")
                args.lengths = tensor.pointer
                return
            lengths = lengths.tolist()
        host = host_lengths(lengths, rows)
        self.keep.append(host)
        args.lengths = c.addressof(host)
        if self.cuda >= 0:
            raise invalid("lengths: in host memory, the scores are on a GPU: put them there too")

    def set_tables(self, page_table: Any, page_size: int | None, row_offsets: Any) -> None:
        args, rows = self.args, self.args.num_rows
        if (page_table is None) != (page_size is None):
            raise invalid("page_table and page_size belong together: give both or neither")
        if page_table is not None:
            size = positive(page_size, "page_size")
            if size == 0 or size & (size - 1):
                raise invalid(f"page_size {size} is not a power of two")
            tensor = self._read(page_table, "page_table")
            columns, stride = _tensors.check_matrix(tensor, "i4", rows, "page_table")
            args.page_table, args.page_table_stride = tensor.pointer, stride
            args.page_table_width, args.page_size_log2 = columns, size.bit_length() - 1
        if row_offsets is not None:
            tensor = self._read(row_offsets, "row_offsets")
            _tensors.check_vector(tensor, "i4", rows, "row_offsets")
            args.row_offsets = tensor.pointer

    def set_output(self, field: str, value: Any, kind: str, name: str) -> None:
        k = self.args.k
        tensor, stride = read_out(value, kind, (*self.shape, k), name)
        if tensor.cuda != self.cuda:
            self._read(value, name)
        self.keep.append(tensor.owner)
        setattr(self.args, field, tensor.pointer)
        setattr(self.args, "index_stride" if field == "indices" else "value_stride", stride)

    def alignment(self) -> int:
        """Bytes to which every row start is aligned: those of a score ... 128, a power of two."""
        common = math.gcd(self.args.scores or 128, self.args.row_stride * self._item_bytes, 128)
        return common & -common


def _place(cuda: int) -> str:
    return f"GPU {cuda}" if cuda >= 0 else "the host"


# ---- Selecting -----------------------------------------------------------------------------------


def select(
    scores: Any,
    lengths: Any = None,
    k: int = 2048,
    *,
    order: str = "any",
    ties: str = "any",
    deterministic: bool = False,
    values: bool = False,
    page_table: Any = None,
    page_size: int | None = None,
    row_offsets: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The positions of the K highest scores of every row, selected in this process.

    The contract, the arguments and the result are those of ``Client.select``; no daemon is needed and
    nothing is copied. All tensors lie where the scores lie. Scores in host memory are selected from by
    a pool of threads (``set_threads``), and the call blocks. Scores on a GPU are selected from in the
    order of the stream, and the call returns at once.

    A GPU keeps a workspace for each stream and shape class that selects (at most 64 MiB each, 8 a
    stream, the least recently used goes). Not in a capture: the C interface, or ``Client.lane``.

    Raises:
        topkd.Error: ``InvalidError`` (names the argument, its value and the limit),
            ``NotVisibleError`` (tensors in different places), ``NoDeviceError`` (built without
            CUDA), ``UnsupportedError``, ``NoMemoryError``, ``DeviceFaultError``.
        ImportError: no libtopksel.
    """
    tensor = _tensors.read(scores, "scores")
    request = _Request(tensor)
    request.args.k = min(positive(k, "k"), _INT32_MAX)
    options = _abi.SelectorOptions(
        choice(order, _abi.ORDERS, "order"), choice(ties, _abi.TIES, "ties"), request.dtype
    )
    if deterministic:
        if order == "value":
            raise invalid("deterministic means order by index: not together with order='value'")
        options = _abi.SelectorOptions(_abi.ORDERS["index"], _abi.TIES["lowest"], request.dtype)
    request.set_lengths(lengths)
    request.set_tables(page_table, page_size, row_offsets)
    made = _outputs(request, tensor, values, out)
    if request.cuda >= 0:
        handle = _tensors.current_stream(tensor) if stream is None else _tensors.stream_handle(stream)
        if request.args.num_rows > 0:
            _cuda.select(request.args, options, request.alignment(), request.cuda, handle)
            if _tensors.is_unordered(scores):
                _cuda.synchronize(request.cuda, handle)
    else:
        if stream is not None:
            raise invalid("stream: the scores are in host memory, there is none")
        _select_cpu(request.args, options)
    return made[0] if not values else (made[0], made[1])


def _select_cpu(args: _abi.SelectorArgs, options: _abi.SelectorOptions) -> None:
    detail = c.create_string_buffer(DETAIL_BYTES)
    status = selector_library().topk_cpu_select(
        _threads.get(), c.byref(args), c.byref(options), None, detail
    )
    raise_status(status, detail)


def _outputs(request: _Request, like: Tensor, values: bool, out: Any) -> list[Any]:
    k = request.args.k
    if not 1 <= k <= 16384:  # TOPK_K_MAX; before so much memory is asked for
        raise invalid(f"k is {k}: 1 ... 16384")
    if out is None:
        shape = (*request.shape, k)
        made = [empty_beside(like, shape, "i4")]
        if values:
            made.append(empty_beside(like, shape, "f4"))
    else:
        made = split_out(out, values)
    request.set_output("indices", made[0], "i4", "out")
    if values:
        request.set_output("values", made[1], "f4", "out[1]")
    return made
