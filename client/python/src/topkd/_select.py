"""How selections get on their way: from arguments to a request, and from there to the daemon, waited
for by a thread, by a stream, or by an event loop."""

from __future__ import annotations

import asyncio
import ctypes as c
import time
from typing import Any

from . import _abi, _tensors
from ._aio import PAUSE_S, Loops
from ._ahead import Ahead, Deferred
from ._call import Call, choice, positive, timeout_ms
from ._results import Results, outputs
from ._session import Op, Session
from .errors import from_status, invalid

_U32_MAX = 0xFFFFFFFF


class Selections:
    """Those of one client."""

    def __init__(self, session: Session, may_stage: bool) -> None:
        self._session = session
        self._may_stage = may_stage
        self._loops = Loops(session)

    # ---- Requests --------------------------------------------------------------------------------

    def prepare(
        self, scores: Any, lengths: Any, k: int, order: str, ties: str, deterministic: bool,
        values: bool, page_table: Any, page_size: int | None, row_offsets: Any, out: Any,
        stream: Any, timeout: float | None, *, is_lane: bool = False, ahead: Ahead | None = None,
    ) -> tuple[Call, Results]:
        """A request and room for its results. With ``ahead`` it never waits for the daemon: what
        would is raised as ``Deferred``."""
        tensor = _tensors.read(scores, "scores")
        may_stage = self._may_stage and not is_lane
        call = Call(self._session, may_stage, self._stream(tensor, stream), is_lane, ahead)
        request = call.request
        try:
            shape = _set_scores(call, tensor)
            rows = request.rows
            request.k = positive(k, "k")
            if k == 0:
                raise invalid("k is 0: 1 ... 16384")
            if order != "any":
                request.order = choice(order, _abi.ORDERS, "order")
            if ties != "any":
                request.ties = choice(ties, _abi.TIES, "ties")
            if deterministic:
                request.deterministic = True
            if timeout is not None:
                request.timeout_ms = timeout_ms(timeout)
            if lengths is not None:
                call.set_lengths(lengths, rows)
            if page_table is not None or page_size is not None:
                call.set_page_table(page_table, page_size, rows)
            if row_offsets is not None:
                call.set_row_offsets(row_offsets, rows)
            return call, outputs(call, tensor, (*shape, request.k), values, out)
        except Deferred:
            call.take_back()
            raise
        except BaseException:
            call.close()
            raise

    async def prepare_beside(self, *arguments: Any) -> tuple[Call, Results]:
        """The same for an event loop: memory that the daemon does not know yet is registered, and
        made, in other threads. Tensors and the stream are looked at in the loop's own."""
        session = self._session
        loop = asyncio.get_running_loop()
        ahead = Ahead(session) if session.is_cuda else None
        try:
            while True:
                session.enter()
                try:
                    return self.prepare(*arguments, ahead=ahead)
                except Deferred as deferred:
                    work = deferred.work
                finally:
                    session.leave()
                await loop.run_in_executor(None, session.within, work)
        finally:
            if ahead is not None:
                ahead.close()

    def _stream(self, tensor: _tensors.Tensor, stream: Any) -> int:
        if not self._session.is_cuda:
            if stream is not None:
                raise invalid("stream: the session's device is the CPU, it has none")
            return 0
        if stream is not None:
            return _tensors.stream_handle(stream)
        return _tensors.current_stream(tensor) if tensor.cuda >= 0 else 0

    # ---- Threads and streams ---------------------------------------------------------------------

    def block(self, call: Call) -> None:
        """On the CPU device: until the result is written."""
        session = self._session
        status = session.library.topkd_select(
            session.handle, c.byref(call.request), c.byref(_abi.SelectResult())
        )
        if status != 0:
            error = from_status(status)
            for buffer in call.buffers:  # the worker may still be writing there
                buffer.is_spoiled = True
            raise error

    def enqueue(self, call: Call, is_waiting: bool) -> None:
        """Starts a selection in its stream; waits for a renewed session, for earlier selections where
        too many are in flight, and for itself where the caller's framework would not see the stream's
        order."""
        session = self._session
        try:
            while True:
                with session.lock:
                    session.reap()
                    session.raise_failure()
                    op = self._try_stream(call)
                    if op is not None and is_waiting:
                        session.hold(op)
                if op is not None:
                    break
                if call.is_renewing:
                    session.await_renewal(call.seconds_left())
                elif not session.wait_one():
                    time.sleep(PAUSE_S)  # other threads' own
        finally:
            call.close()
        if is_waiting:
            session.wait(op, None)
            error = session.finish(op)
            if error is not None:
                raise error

    def _try_stream(self, call: Call) -> Op | None:
        """With the session's lock, which nobody holds while he waits for the daemon. None: not now,
        because the session is renewed or as many are in flight as may be."""
        session = self._session
        pointer = c.c_void_p()
        status = session.library.topkd_select_stream_try(
            session.handle, c.byref(call.request), call.stream, c.byref(pointer)
        )
        return self._note(call, status, pointer)

    def _note(self, call: Call, status: int, pointer: c.c_void_p) -> Op | None:
        session = self._session
        call.is_renewing = False
        if status != 0:
            error = from_status(status)
            call.is_renewing = error.name == "TOPKD_E_TIMEOUT"
            if call.is_renewing or error.name == "TOPKD_E_BUSY":
                return None
            raise error
        op = Op(pointer.value or 0, call.keep, call.buffers)
        session.ops[op.pointer] = op
        return op

    # ---- asyncio ---------------------------------------------------------------------------------

    async def start(self, call: Call) -> Op:
        """Once there is a session and room in it; ``end_of`` must follow."""
        session = self._session
        loop = asyncio.get_running_loop()
        try:
            while True:
                session.enter()  # not while it sleeps: this very thread may close the client then
                try:
                    op = self._try_start(call, loop)
                    if op is not None:
                        return op
                    if call.is_renewing and call.seconds_left() <= 0:
                        session.await_renewal(0.001)  # raises what keeps it
                finally:
                    session.leave()
                await asyncio.sleep(PAUSE_S)
        finally:
            call.close()

    def _try_start(self, call: Call, loop: asyncio.AbstractEventLoop) -> Op | None:
        """None: not now."""
        session = self._session
        with session.lock:
            session.reap()
            if session.is_cuda:
                op = self._try_stream(call)
            else:
                pointer = c.c_void_p()
                status = session.library.topkd_select_start(
                    session.handle, c.byref(call.request), None, c.byref(pointer)
                )
                op = self._note(call, status, pointer)
            if op is not None:
                op.future, op.loop = loop.create_future(), loop
                self._loops.watch(loop)
        return op

    async def end_of(self, op: Op) -> None:
        """Raises what it ended with; cancelled, it cancels the selection."""
        session = self._session
        try:
            await op.future
        except BaseException:
            with session.lock:
                mine = session.ops.pop(op.pointer, None) is op
            if mine:
                session.finish(op)
            raise
        finally:
            self._loops.unwatch(op.loop)


def _set_scores(call: Call, tensor: _tensors.Tensor) -> tuple[int, ...]:
    """Places the scores; returns the rows as a shape, () for one row without a dimension."""
    request = call.request
    scores = _tensors.Scores(tensor)
    if not 0 < scores.width <= _U32_MAX or scores.rows > _U32_MAX:
        raise invalid(f"scores: shape {tuple(tensor.shape)}: rows have at least 1 score, and no size "
                      f"is above {_U32_MAX}")
    request.dtype = scores.dtype
    request.rows = scores.rows
    request.width = scores.width
    call.hold(tensor)
    if scores.rows > 0:
        call.place(request.scores, tensor, scores.stride, "scores")
    return scores.shape
