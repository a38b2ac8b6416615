"""Selection inside a CUDA graph."""

from __future__ import annotations

import ctypes as c
from types import TracebackType
from typing import Any

from . import _abi, _tensors
from ._call import Call
from ._results import Results
from ._session import Session
from .errors import from_status, invalid, named


class Lane:
    """A selection of one shape in fixed tensors, made by ``Client.lane``.

    ``lane()`` adds a step to a stream, or to the capture in progress on it; the graph can be replayed
    as long as the lane is open. A step reads what lies in the tensors when the stream reaches it.

    Attributes:
        indices: int32 [rows, k], what every step writes.
        values: float32 [rows, k], or None.

    Threads: one at a time a lane. A lane cannot be pickled; ``with`` closes it.
    """

    def __init__(
        self, session: Session, call: Call, results: Results, like: _tensors.Tensor,
        live_rows: Any, options: _abi.LaneOptions,
    ) -> None:
        self._session = session
        self._handle = 0
        self._call = call  # the tensors and their regions
        self._like = _tensors.Tensor(
            0, (), (), "f4", like.cuda, like.framework, None, like.stream
        )
        self.indices: Any = results.indices
        self.values: Any = results.values
        if live_rows is not None:
            tensor = _tensors.read(live_rows, "live_rows")
            _tensors.check_vector(tensor, "i4", 1, "live_rows")
            call.hold(tensor)
            call.place(options.live_rows, tensor, 0, "live_rows")
        handle = c.c_void_p()
        status = session.library.topkd_lane_open(
            session.handle, c.byref(call.request), c.byref(options), c.byref(handle)
        )
        if status != 0:
            raise from_status(status)
        self._handle = handle.value or 0
        with session.lock:
            session.lanes[self._handle] = call

    def __call__(self, stream: Any = None) -> Any:
        """Adds one step to a stream; does not block and synchronises nothing.

        Args:
            stream: of torch, CuPy, Numba, or a handle; None: the stream that the scores' framework
                works in now, which in ``torch.cuda.graph(...)`` is the one that is captured.
        Returns:
            ``indices``, or the pair (indices, values): the same tensors for every step.
        Raises:
            topkd.Error: that of ``check``; ``InvalidError`` (no stream of the device),
                ``StaleSessionError`` (no worker serves the lane now), ``ClosedError``.
        """
        if stream is None:
            handle = _tensors.current_stream(self._like)
        else:
            handle = _tensors.stream_handle(stream)
        session = self._session
        session.enter()
        try:
            status = session.library.topkd_lane_enqueue(self._open(), handle)
            if status != 0:
                raise from_status(status)
        finally:
            session.leave()
        return self.indices if self.values is None else (self.indices, self.values)

    def check(self) -> None:
        """Raises, once after each failure, when steps were answered without a selection: the worker
        died, or the daemon drains. Their results are undefined. Call it when the results of replays
        are about to be used for good; it reads host memory only."""
        session = self._session
        session.enter()
        try:
            status = session.library.topkd_lane_check(self._open())
            if status != 0:
                raise from_status(status)
        finally:
            session.leave()

    def info(self) -> dict[str, int]:
        """``is_served`` by a worker now, ``status`` (0, or why not), ``num_failed`` steps answered
        without a selection and ``num_renewals`` since it was opened; ``wait``, what a step is for
        the stream (1: the driver's operations, 2: a kernel), and ``poll_us``, as granted."""
        info = _abi.LaneInfo()
        session = self._session
        session.enter()
        try:
            status = session.library.topkd_lane_info(self._open(), c.byref(info))
            if status != 0:
                raise from_status(status)
        finally:
            session.leave()
        return {field[0]: int(getattr(info, field[0])) for field in info._fields_}

    def close(self) -> None:
        """Blocks until the worker has let go of the lane. No step may be outstanding, and graphs with
        one must not be replayed any more. A second call, or one after the client's close, does
        nothing."""
        session = self._session
        # From here on this object names no lane: the next one may be at the same address.
        handle, self._handle = self._handle, 0
        if session.is_closed or handle == 0:
            return
        session.enter()
        try:
            session.close_lane(handle)
        finally:
            session.leave()

    def _open(self) -> int:
        if self._handle == 0:
            raise named("CLOSED", "the lane is closed")
        return self._handle

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle:
            self._session.forget_lane(self._handle)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a topkd.Lane belongs to a session of this process and cannot be pickled")


def check_request(call: Call) -> None:
    """What a lane cannot have: everything is read when a step runs."""
    if call.request.lengths_mode == _abi.LENGTHS_HOST:
        raise invalid("lengths: a lane reads them when a step runs: give int32 [rows] on the device")
    if call.request.rows == 0:
        raise invalid("scores: a lane has at least 1 row (live_rows may be 0)")


_WAITS = {"auto": 0, "driver": 1, "kernel": 2}


def read_options(device_mailbox: bool, wait: str, poll_us: int) -> _abi.LaneOptions:
    """What ``Client.lane`` was given, as the library takes it."""
    if wait not in _WAITS:
        raise invalid(f"wait: {wait!r} is none of {', '.join(_WAITS)}")
    if isinstance(poll_us, bool) or not isinstance(poll_us, int) or not 0 <= poll_us < 1 << 32:
        raise invalid(f"poll_us: {poll_us!r} is no whole number of microseconds, 0 or more")
    return _abi.LaneOptions(device_mailbox=device_mailbox, wait=_WAITS[wait], poll_us=poll_us)
