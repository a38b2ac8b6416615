"""One session of the C library with all that Python keeps for it.

A ``Client`` is a thin face over a session. The session outlives it as long as arrays over its memory
do: then it takes no more calls, but the memory stays mapped.
"""

from __future__ import annotations

import ctypes as c
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _abi, _fork
from ._buffers import Buffer, DeviceMemory, Pool
from ._library import client_library
from ._regions import Regions
from .errors import Error, from_status, named


TIMEOUT_MS = 10_000  # of a client without its own: topkd_client_options in topkd.h
LOOK_S = 1.0  # choice: between two looks of the janitor at what is kept, at most


class Op:
    """A selection in flight, and what must live until it has ended."""

    __slots__ = ("future", "has_ended", "keep", "loop", "pointer", "spoil")

    def __init__(self, pointer: int, keep: Any, spoil: list[Buffer]) -> None:
        self.pointer = pointer
        self.keep = keep
        self.spoil = spoil  # buffers that a failed selection may still write to
        self.has_ended = False  # seen by `reap` while somebody waited for this very one
        self.future: Any = None  # of aselect
        self.loop: Any = None


class Session:
    def __init__(self, options: _abi.ClientOptions, idle_regions: int, idle_s: float) -> None:
        self.library = client_library()
        handle = c.c_void_p()
        status = self.library.topkd_client_open(c.byref(options), c.byref(handle))
        if status != 0:
            raise from_status(status)
        self.handle: int = handle.value or 0
        self.generation = _fork.generation
        self.is_closed = False
        info = self.info()
        self.is_cuda: bool = info.device_kind == _abi.DEVICE_CUDA
        self.device: str = info.device.decode()
        self.outstanding_max = info.outstanding_max
        self.staged_bytes = 0
        self.failures: deque[Error] = deque(maxlen=64)
        self.timeout_s = (options.timeout_ms or TIMEOUT_MS) / 1e3
        self.ops: dict[int, Op] = {}
        self.waited: dict[int, Op] = {}  # those that a thread is in `wait` for; not in `ops`
        self.lanes: dict[int, Any] = {}  # handle: the call that holds tensors and regions
        # Over the start of an operation and its entry into `ops`; never while the daemon is waited for.
        self.lock = threading.Lock()
        self._idle_s = idle_s
        # What the janitor is told comes through here; put() may be called anywhere.
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # So many results lie in buffers of their own (each is a region); more are copied.
        results_max = min(64, info.regions_max // 2)
        self.pool = Pool(self.handle, results_max, self._told.put)
        self.regions = Regions(self.handle, self._told.put, idle_regions, idle_s)
        self._num_device = 0  # DeviceMemory alive
        self._num_calls = 0  # threads between `enter` and `leave`
        self.short_calls: set[Buffer] = set()  # buffers of calls on the short way (_recent.py)
        self.num_awaiting = 0  # tasks that wait for a selection; with the lock
        self._ended = threading.Event()
        self._janitor = threading.Thread(target=self._clean, name="topkd-janitor", daemon=True)
        self._janitor.start()

    def info(self) -> _abi.ClientInfo:
        info = _abi.ClientInfo()
        status = self.library.topkd_client_info(self.handle, c.byref(info))
        if status != 0:
            raise from_status(status)
        return info

    def check(self) -> None:
        """Raises when the session cannot be used: closed, or of the parent process."""
        if self.generation != _fork.generation:
            raise named(
                "CLOSED",
                "this client was opened before a fork, in the parent process: its threads and its "
                "connection are not here. Open clients after the fork (CUDA does not survive it), "
                'or use the start method "spawn"',
            )
        if self.is_closed:
            raise named("CLOSED", "the client is closed")

    def enter(self) -> None:
        """Before each use of the C client; it is not closed before ``leave``."""
        if self.generation != _fork.generation:  # the lock may be held for ever then
            self.check()
        with self.lock:
            if self.is_closed:  # looked at here, so that `_is_unused` sees us or we see this
                self.check()
            self._num_calls += 1

    def leave(self) -> None:
        with self.lock:
            self._num_calls -= 1
        self.look()

    def within(self, work: Callable[[], None]) -> None:
        """For work in another thread: the C client is not closed meanwhile."""
        self.enter()
        try:
            work()
        finally:
            self.leave()

    def await_renewal(self, seconds: float) -> None:
        """Blocks until the session takes requests; raises what keeps it from that."""
        status = self.library.topkd_client_wait(self.handle, max(1, int(seconds * 1000)))
        if status != 0:
            raise from_status(status)

    def look(self) -> None:
        """Somebody has let go of something: perhaps it was the last that a close waits for."""
        if self.is_closed:
            self._told.put(("look",))

    # ---- Memory ----------------------------------------------------------------------------------

    def device_memory(self, size_bytes: int) -> DeviceMemory:
        memory = DeviceMemory(self.handle, size_bytes, lambda h: self._told.put(("device", h)))
        with self.lock:
            self._num_device += 1
        return memory

    # ---- Operations ------------------------------------------------------------------------------

    def finish(self, op: Op) -> Error | None:
        """Ends an operation that is done (an unfinished one is cancelled)."""
        status = self.library.topkd_op_finish(op.pointer, None)
        error = from_status(status) if status != 0 else None
        if error is not None:
            for buffer in op.spoil:  # before what we keep is let go: it would be used again
                buffer.is_spoiled = True
        op.keep = None
        return error

    def _deliver(self, op: Op, error: Error | None) -> None:
        if op.future is None:
            if error is not None:
                self.failures.append(error)
            return
        try:
            op.loop.call_soon_threadsafe(_settle, op.future, error)
        except RuntimeError:
            pass  # its loop was closed: nobody waits

    def reap(self) -> None:
        """Ends what has finished. With the lock."""
        while True:
            pointer = self.library.topkd_op_next(self.handle)
            if pointer is None:
                return
            op = self.ops.pop(pointer, None)
            if op is not None:
                self._deliver(op, self.finish(op))
            elif pointer in self.waited:  # it will not be told again
                self.waited[pointer].has_ended = True

    def wait_one(self, timeout_s: float | None = None) -> bool:
        """Waits for the oldest selection of a stream; False when there is none."""
        with self.lock:
            self.reap()
            op = next((op for op in self.ops.values() if op.future is None), None)
            if op is None:
                return False
            self.hold(op)
        self.wait(op, timeout_s)
        self._deliver(op, self.finish(op))
        return True

    def hold(self, op: Op) -> None:
        """With the lock: it is the caller's, who goes on with ``wait``."""
        del self.ops[op.pointer]
        self.waited[op.pointer] = op

    def wait(self, op: Op, timeout_s: float | None) -> None:
        """Waits for an operation that is held. One that has not ended in time is let go again."""
        ms = 0 if timeout_s is None else max(1, int(timeout_s * 1000))
        status = self.library.topkd_op_wait(op.pointer, ms)
        error = from_status(status) if status != 0 else None
        with self.lock:
            del self.waited[op.pointer]
            if error is None or op.has_ended:  # it may have been seen to end after all
                return
            self.ops[op.pointer] = op
        raise error

    def raise_failure(self) -> None:
        if self.failures:
            error = self.failures.popleft()
            raise named(
                error.name.removeprefix("TOPKD_E_"),
                "an earlier selection in the order of a stream failed, its result is undefined: "
                + error.message,
            )

    # ---- Lanes -----------------------------------------------------------------------------------

    def close_lane(self, handle: int) -> None:
        """Blocks until the worker has let go; nothing when it is closed already."""
        with self.lock:
            call = self.lanes.pop(handle, None)
        if call is not None:
            self.library.topkd_lane_close(handle)
            call.close()

    def forget_lane(self, handle: int) -> None:
        """Nobody has the lane any more; may be called anywhere."""
        self._told.put(("lane", handle))

    # ---- The end, and the janitor ----------------------------------------------------------------

    def trim(self) -> int:
        return self.regions.trim(0.0) + self.pool.trim(0.0)

    def close(self, wait: bool = True) -> None:
        """No more calls. The C client is closed at once, or with the last array over its memory."""
        if self.is_closed or self.generation != _fork.generation:
            self.is_closed = True
            return
        self.is_closed = True
        self.pool.is_closed = True
        self._told.put(("close",))
        if wait and threading.current_thread() is not self._janitor:
            self._ended.wait()

    def _clean(self) -> None:
        """The janitor: whatever may block and nobody should wait for."""
        is_closing = False
        pause = min(max(self._idle_s / 4, 0.05), LOOK_S)
        look = time.monotonic() + pause
        while True:
            timeout = None
            if not is_closing and (len(self.pool) > 0 or len(self.regions) > 0):
                timeout = look - time.monotonic()
                if timeout <= 0:  # also where it is told something all the time
                    self.pool.trim(self._idle_s)
                    self.regions.trim()
                    look = time.monotonic() + pause
                    continue
            try:
                told = self._told.get(timeout=timeout)
            except queue.Empty:
                continue
            is_closing = self._do(told) or is_closing
            if is_closing and self._is_unused() and self._end():
                return

    def _is_unused(self) -> bool:
        """Whether nobody is between `enter` and `leave`. Once closed, nobody comes in any more."""
        with self.lock:
            return self._num_calls == 0 and not self.short_calls

    def _end(self) -> bool:
        """Closes the C client, but not before the last array over its memory and the last task have
        gone: close() does not wait for these."""
        self.pool.trim(0.0)
        self._end_ops()
        for handle in list(self.lanes):
            self.close_lane(handle)
        is_last = (
            self.pool.num_leased == 0 and self._num_device == 0 and self.num_awaiting == 0
        )
        if is_last:
            self.library.topkd_client_close(self.handle)
        else:
            self.regions.trim(0.0)
        self._ended.set()
        return is_last

    def _end_ops(self) -> None:
        with self.lock:
            ops = list(self.ops.values())
            self.ops.clear()
        for op in ops:
            self._deliver(op, self.finish(op) or named("CANCELLED", "the client was closed"))

    def _do(self, told: tuple[Any, ...]) -> bool:
        """One thing that somebody told the janitor; True when that is to close."""
        if told[0] == "buffer":
            self.pool.destroy(told[1])
        elif told[0] == "device":
            self.library.topkd_buffer_destroy(told[1])
            with self.lock:
                self._num_device -= 1
        elif told[0] == "lane":
            self.close_lane(told[1])
        return bool(told[0] == "close")


def _settle(future: Any, error: Error | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
