"""The client of a daemon."""

from __future__ import annotations

import ctypes as c
import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _abi, _array, _cuda, _tensors, _torch_calls
from ._call import timeout_ms
from ._lane import Lane, check_request, read_options
from ._recent import RecentCalls
from ._select import Selections
from ._session import Session
from .errors import from_status, invalid, named


class Client:
    """A session with one device of a topkd daemon.

    Args:
        url: of the daemon, ``"ipc:///run/topkd/topkd.sock"``. None: ``$TOPKD_URL``, else
            ``$XDG_RUNTIME_DIR/topkd/topkd.sock`` if it exists, else ``/run/topkd/topkd.sock``.
        device: UUID of the device (``"cpu"``, ``"GPU-..."``). None: ``$TOPKD_DEVICE``, else the first
            that is ready.
        name: shown to operators; None: the program's name.
        timeout: default deadline of every call in seconds; None: 10.
        staging: whether memory that the daemon cannot map may be copied. None: yes on the CPU
            device, where every plain array is of that kind, no on a GPU, where such memory raises
            ``NotExportableError``. False refuses on the CPU device too: make arrays with ``empty``.
        renew: whether the session is renewed when the daemon or its worker restarts. False: calls
            raise ``StaleSessionError`` then.
        idle_regions, idle_timeout: how many registrations of memory that is not in use any more are
            kept, and for how many seconds. ``trim`` ends them at once.

    Raises:
        topkd.Error: ``UnreachableError``, ``NoDeviceError``, ``NotPermittedError``, ``VersionError``,
            ``LimitError``, ``DrainingError``, ``TimeoutError``, ``MapFailedError``,
            ``InvalidError``, ``ClosedError`` (a GPU, after a fork of a process that used CUDA).

    Threads: every method may be called from any thread at once. ``with Client() as client:`` closes
    it at the end. A client cannot be pickled, and after ``fork`` the child cannot use it, but
    can open its own.
    """

    def __init__(
        self,
        url: str | None = None,
        device: str | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
        staging: bool | None = None,
        renew: bool = True,
        idle_regions: int = 32,
        idle_timeout: float = 10.0,
    ) -> None:
        if idle_regions < 0 or idle_timeout < 0:
            raise invalid(
                f"idle_regions {idle_regions}, idle_timeout {idle_timeout}: neither is below 0"
            )
        options = _abi.ClientOptions(
            url=url.encode() if url is not None else None,
            device=device.encode() if device is not None else None,
            name=name.encode() if name is not None else None,
            timeout_ms=timeout_ms(timeout),
            no_renew=not renew,
        )
        self._session = Session(options, idle_regions, idle_timeout)
        self._recent = RecentCalls()
        self._short_way: tuple[_torch_calls.Select, _torch_calls.Note] | None = None
        may_stage = not self._session.is_cuda if staging is None else staging
        self._selections = Selections(self._session, may_stage)
        # Not at exit: arrays may be used to the very end, and the daemon notices ours.
        self._finalizer = weakref.finalize(self, self._session.close, False)
        self._finalizer.atexit = False

    # ---- Life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the session; what is in flight is cancelled. Blocks until no work uses the client's
        memory any more. Arrays over the session's memory (results, ``empty``) stay usable; the
        connection itself ends with the last of them. A second call does nothing."""
        self._finalizer.detach()
        self._session.close()

    def __enter__(self) -> Client:
        self._session.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a topkd.Client is a session of this process and cannot be pickled or copied: send the "
            "daemon's URL and open a client in the other process"
        )

    def __repr__(self) -> str:
        state = "closed" if self._session.is_closed else "open"
        return f"<topkd.Client {self._session.device} {state}>"

    @property
    def device(self) -> str:
        """UUID of the session's device, or ``"cpu"``."""
        return self._session.device

    @property
    def is_cuda(self) -> bool:
        """Whether the session's device is a GPU."""
        return self._session.is_cuda

    def info(self) -> dict[str, Any]:
        """What the session offers: limits, the server's version, session, epoch (as in topkd.h)."""
        self._session.enter()
        try:
            info = self._session.info()
        finally:
            self._session.leave()
        values = {field[0]: getattr(info, field[0]) for field in info._fields_}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}

    def ping(self) -> float:
        """Seconds of a round trip to the worker, without work."""
        taken = c.c_uint64()
        self._session.enter()
        try:
            status = self._session.library.topkd_ping(self._session.handle, c.byref(taken))
            if status != 0:
                raise from_status(status)
        finally:
            self._session.leave()
        return taken.value / 1e9

    def stats(self) -> dict[str, int]:
        """Counters of this client: ``regions`` registered now, ``registrations`` made so far,
        ``buffers`` of shared memory, ``buffers_leased`` of which arrays hold, ``staged_bytes`` copied
        because the daemon could not map them, ``in_flight`` selections not seen to end yet."""
        session = self._session
        return {
            "regions": len(session.regions),
            "registrations": session.regions.num_registrations,
            "buffers": len(session.pool),
            "buffers_leased": session.pool.num_leased,
            "staged_bytes": session.staged_bytes,
            "in_flight": len(session.ops),
        }

    # ---- Memory ----------------------------------------------------------------------------------

    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, framework: str | None = None
    ) -> Any:
        """A new dense tensor in memory that the daemon reads and writes in place.

        On the CPU device it is POSIX shared memory, on a GPU memory of the session's device. The
        content is undefined. It goes back with the last array over it.

        Args:
            shape: sizes, or one number.
            dtype: float32, float16, bfloat16 or int32, by name or as a type of NumPy or torch.
                NumPy has no bfloat16: name another framework with it.
            framework: of the result: ``"numpy"``, ``"torch"``, ``"cupy"``, ``"jax"``, ``"numba"``, or
                ``"topkd"`` for a plain ``topkd.Array``. None: NumPy on the CPU device if it is
                there, else ``"topkd"``.
        Raises:
            topkd.Error: ``LimitError`` (each array is a region; limits.regions_max),
                ``NoMemoryError``, ``InvalidError``, ``NotPermittedError``.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
        kind = _array.kind_of(dtype)
        if any(size < 0 for size in sizes):
            raise invalid(f"shape {sizes}: no size may be below 0")
        num_bytes = _tensors.item_bytes(kind)
        for size in sizes:
            num_bytes *= size
        session = self._session
        session.enter()
        try:
            owner: Any
            if session.is_cuda:
                owner = session.device_memory(num_bytes)
                pointer, cuda = owner.pointer, _cuda.ordinal_of(owner.pointer)
            else:
                owner = session.pool.lease(max(num_bytes, 1))
                pointer, cuda = owner.buffer.pointer, -1
        finally:
            session.leave()
        if framework is None:
            framework = "numpy" if not session.is_cuda and _array.has_numpy() else "topkd"
            framework = "topkd" if kind == "bf2" else framework
        return _array.wrap(_array.Array(pointer, sizes, kind, cuda, owner), framework)

    def trim(self) -> int:
        """Ends the registrations of memory that is not in use now and frees shared buffers that
        nobody holds; returns how many. Call it after ``torch.cuda.empty_cache()``: what the worker
        has mapped is only then given back to the GPU."""
        self._session.enter()
        try:
            return self._session.trim()
        finally:
            self._session.leave()

    # ---- Selecting -------------------------------------------------------------------------------

    def select(
        self,
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
        timeout: float | None = None,
    ) -> Any:
        """The positions of the K highest scores of every row.

        On the CPU device it blocks until the result is written. On a GPU it returns at once: the
        selection runs in the order of the stream, after what was enqueued there before, and what is
        enqueued afterwards sees the result. Should it fail then, its result is undefined and the
        next ``select``, ``check`` or ``synchronize`` raises the error. (With JAX, whose streams cannot
        be named, it blocks until the result is written.)

        Args:
            scores: float32, float16 or bfloat16 [rows, width] (rows may be further apart than
                width), or [width] for one row. On the CPU device arrays of ``empty`` are read in
                place, others are copied. On a GPU they are read where they are; their memory is
                registered once an allocation.
            lengths: how many scores of each row are valid: None (all), one number for every row, a
                sequence, or int32 [rows] on the host or the device. Below 0 counts as 0, above the
                width as the width.
            k: positions wanted a row, 1 ... 16384.
            order: ``"any"`` (fastest), ``"index"`` ascending, ``"value"`` descending.
            ties: which of equal scores at the boundary: ``"any"``, or ``"lowest"`` positions.
            deterministic: ties lowest, order by index: the same bytes whatever the load or run.
            values: return the scores at the positions too (-inf beside -1).
            page_table: int32 [rows, pages]; position p becomes
                ``page_table[row, p // page_size] * page_size + p % page_size``.
            page_size: a power of two, with ``page_table``.
            row_offsets: int32 [rows], added to every position but -1.
            out: int32 [rows, k] to write to instead of a new tensor; with ``values`` a pair of it and
                float32 [rows, k].
            stream: of the GPU, in whose order the selection runs: of torch, CuPy, Numba, or a handle.
                None: the stream that the scores' framework works in now.
            timeout: seconds until ``TimeoutError``; None: the client's default. In a stream it counts
                from this call, the time until the stream gets there included.
        Returns:
            int32 [rows, k] ([k] for one row without a dimension) in the framework and on the device
            of ``scores``: K different positions, -1 after the last of a shorter row; with ``values`` a
            pair (indices, float32 values).
        Raises:
            topkd.Error: ``InvalidError`` (names the argument, its value and the limit),
                ``NotExportableError``, ``OverlapError``, ``NotVisibleError``, ``UnsupportedError``
                (also in a capture: see ``lane``), ``LimitError``, ``BusyError``, ``TimeoutError``,
                ``StaleSessionError``, ``DeviceFaultError`` and others of topkd.h.
        """
        session = self._session
        options = None
        if session.is_cuda:
            if stream is None:
                options = _torch_calls.options_of(
                    scores, lengths, k, order, ties, deterministic, values, page_table, page_size,
                    row_offsets, out, timeout,
                )
                if options is not None and self._short_way is not None:
                    result = self._short_way[0](
                        scores, lengths, page_table, row_offsets, out, options
                    )
                    if result is not None:
                        return result
        elif (
            page_table is None and row_offsets is None and out is None and stream is None
            and page_size is None and (lengths is None or type(lengths) is int)
        ):
            options = (lengths, k, order, ties, deterministic, values, timeout)
            recent = self._recent.get(id(scores))
            if recent is not None:
                result = recent(scores, options)
                if result is not None:
                    return result
        session.enter()
        try:
            call, results = self._selections.prepare(
                scores, lengths, k, order, ties, deterministic, values, page_table, page_size,
                row_offsets, out, stream, timeout,
            )
            if call.request.rows == 0:
                call.close()
            elif session.is_cuda:
                self._selections.enqueue(call, is_waiting=_tensors.is_unordered(scores))
                if options is not None and "torch" in sys.modules:
                    if self._short_way is None:
                        self._short_way = _torch_calls.make_short_way(session)
                    self._short_way[1](call, scores, options)
            else:
                self._selections.block(call)
                if options is not None:
                    shape = tuple(results.indices.shape)
                    self._recent.note(session, scores, options, call, shape)
            return results.take()
        finally:
            session.leave()

    async def aselect(
        self,
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
        timeout: float | None = None,
    ) -> Any:
        """As ``select``, awaited: returns when the result is written and its status known, on a GPU
        too. The event loop is not blocked; many selections may be in flight. On a GPU memory that is
        new to the daemon is registered in another thread meanwhile, and a session that is being renewed
        is waited for like room in it. A task that is cancelled cancels its selection."""
        call, results = await self._selections.prepare_beside(
            scores, lengths, k, order, ties, deterministic, values, page_table, page_size,
            row_offsets, out, stream, timeout,
        )
        if call.request.rows == 0:
            call.close()
        else:
            op = await self._selections.start(call)
            await self._selections.end_of(op)
        return results.take()

    def lane(
        self,
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
        live_rows: Any = None,
        device_mailbox: bool = False,
        wait: str = "auto",
        poll_us: int = 0,
        timeout: float | None = None,
    ) -> Lane:
        """A selection that can be captured into a CUDA graph, of one shape and in fixed tensors.

        The worker keeps it armed on the GPU; no processor has a part in a step. What may differ from
        step to step is read when a step runs: the scores, ``lengths``, ``live_rows``, tables. Open
        lanes outside of a capture; a GPU has room for 16 of all its clients. MPS should run: without,
        processes take turns on the GPU in time slices (``topkctl doctor`` says).

        Args:
            scores, k, order, ties, deterministic, values, page_table, page_size, row_offsets: as for
                ``select``; all tensors on the device, and kept until the lane is closed.
            lengths: None, one number, or int32 [rows] on the device.
            out: what every step writes; None: new tensors, ``Lane.indices`` and ``Lane.values``.
            live_rows: int32 [1] on the device, rows of a step, 0 ... rows; None: all.
            device_mailbox: the words that streams wait for lie in device memory: some 5 us a step
                faster, but see topkd_lane_options in topkd.h.
            wait: what a step is for the stream: ``"driver"``, operations that its queue waits for;
                ``"kernel"``, one thread that looks for the answer, sooner, with
                ``device_mailbox``; ``"auto"``, the kernel where it helps.
            poll_us: for so long after a step the worker looks for the next one by a kernel: sooner
                by another 2 us, but see topkd_lane_options in topkd.h; with ``device_mailbox``.
            timeout: of this call.
        Raises:
            topkd.Error: as ``select``; ``UnsupportedError`` (the session's device is the CPU),
                ``LimitError`` (all lanes of the session are open), ``BusyError`` (all of the GPU).
        """
        session = self._session
        session.enter()
        try:
            if not session.is_cuda:
                raise named(
                    "UNSUPPORTED", "lanes are for CUDA graphs, and the session's device is the CPU"
                )
            call, results = self._selections.prepare(
                scores, lengths, k, order, ties, deterministic, values, page_table, page_size,
                row_offsets, out, None, timeout, is_lane=True,
            )
            try:
                check_request(call)
                tensor = _tensors.read(scores, "scores")
                options = read_options(device_mailbox, wait, poll_us)
                return Lane(session, call, results, tensor, live_rows, options)
            except BaseException:
                call.close()
                raise
        finally:
            session.leave()

    def synchronize(self, timeout: float | None = None) -> None:
        """Waits until every selection in the order of a stream has ended, and raises the first
        failure. Selections only: the stream's other work is not waited for."""
        self._session.enter()
        try:
            while self._session.wait_one(timeout):
                pass
            self._session.raise_failure()
        finally:
            self._session.leave()

    def check(self) -> None:
        """Raises the error of a selection in a stream that has failed by now. Waits for nothing."""
        self._session.enter()
        try:
            with self._session.lock:
                self._session.reap()
            self._session.raise_failure()
        finally:
            self._session.leave()
