"""Shared memory of a session: results, arrays of ``Client.empty``, copies of plain arrays.

On the CPU device a selection reads and writes POSIX shared memory in place. Making such a buffer
costs system calls and a message, so those that come free are kept for a while and used again. A
buffer belongs to a *lease*, an object that arrays hold: when the last array over it goes, the buffer
comes back.

Leases come back wherever Python lets go of an object, in any thread and in the middle of anything,
so that way takes no lock and makes no call: it appends to a deque, or hands over to the session's
janitor.
"""

from __future__ import annotations

import ctypes as c
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any

from ._library import client_library
from .errors import from_status

# Choices: bytes of one size that are kept free, and the smallest size.
_FREE_BYTES_MAX = 64 << 20
_SIZE_MIN = 4096
# Choices: how often a registration is tried again while the worker has no time for it.
BUSY_ATTEMPTS = 100
BUSY_PAUSE_S = 0.01


def size_class(size_bytes: int) -> int:
    """The size of the buffer for so many bytes: four sizes an octave, so at most a quarter more."""
    if size_bytes <= _SIZE_MIN:
        return _SIZE_MIN
    step = 1 << max((size_bytes - 1).bit_length() - 3, 10)
    return (size_bytes + step - 1) // step * step


class Buffer:
    __slots__ = ("end", "free_since", "handle", "home", "is_spoiled", "new_lease", "pointer",
                 "region", "size")

    def __init__(self, handle: int, pointer: int, region: int, size: int, home: int) -> None:
        self.handle = handle
        self.home = home  # key of the free ones that it belongs to
        self.pointer = pointer
        self.end = pointer + size
        self.region = region
        self.size = size
        self.is_spoiled = False  # a worker may still write to it: not to be used again
        self.free_since = 0.0
        self.new_lease: Any = None  # takes the pointer: a ctypes array with an attribute ``buffer``


def _lease_type(pool: Pool, buffer: Buffer) -> Any:
    """A type of ctypes memory whose objects give the buffer back when they go. ``pool`` stays as
    long as one of them."""
    free, free_max = pool.free_of(buffer.home), _FREE_BYTES_MAX // buffer.size
    now = time.monotonic  # a module's names are gone when the interpreter ends

    def give_back(lease: Any) -> None:
        """Runs anywhere: no lock, no call."""
        if pool.is_closed or buffer.is_spoiled or len(free) > free_max:
            pool.retire(buffer)
            return
        buffer.free_since = now()
        free.append(buffer)

    return type("Lease", (c.c_char * buffer.size,), {"__del__": give_back, "buffer": buffer})


def create(client: int, size_bytes: int, make_room: Callable[[], bool]) -> int:
    """topkd_buffer_create; tried again while the worker takes no more registrations for the moment,
    and once after ``make_room`` where a limit was in the way."""
    library, handle = client_library(), c.c_void_p()
    has_made_room = False
    for attempt in range(BUSY_ATTEMPTS + 2):
        status = library.topkd_buffer_create(client, size_bytes, c.byref(handle))
        if status == 0:
            return handle.value or 0
        error = from_status(status)
        if error.name == "TOPKD_E_BUSY" and attempt < BUSY_ATTEMPTS:
            time.sleep(BUSY_PAUSE_S)
        elif error.name not in ("TOPKD_E_LIMIT", "TOPKD_E_NO_MEMORY") or has_made_room:
            raise error
        else:
            has_made_room = True
            if not make_room():
                raise error
    raise error


class Pool:
    """The buffers of one session of the CPU device."""

    def __init__(self, client: int, results_max: int, tell: Callable[[Any], None]) -> None:
        self._library = client_library()
        self._client = client
        self._results_max = results_max
        self._tell = tell  # hands something to the janitor; may be called anywhere
        self._free: dict[int, deque[Buffer]] = {}
        self._lock = threading.Lock()
        # Start addresses in order and their buffers; replaced as a whole, read without the lock.
        self._index: tuple[list[int], list[Buffer]] = ([], [])
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._index[0])

    @property
    def num_leased(self) -> int:
        return len(self) - sum(len(free) for free in self._free.values())

    def lease(self, size_bytes: int, is_copy: bool = False) -> Any:
        """Memory of at least so many bytes: a ctypes array with an attribute ``buffer``. Copies that
        live as long as a call have buffers of their own, so that results never take them all."""
        size = size_class(size_bytes)
        home = -size if is_copy else size
        try:
            buffer = self._free[home].pop()
        except (KeyError, IndexError):
            buffer = self._make(size, home)
        return buffer.new_lease(buffer.pointer)

    def try_lease(self, size_bytes: int) -> Any:
        """The same for a result; None when there are so many buffers that it should be copied."""
        if len(self) >= self._results_max and self.num_leased >= self._results_max:
            return None
        return self.lease(size_bytes)

    def _make(self, size: int, home: int) -> Buffer:
        handle = create(self._client, size, lambda: self.trim(0.0) > 0)
        pointer = self._library.topkd_buffer_data(handle)
        region = self._library.topkd_buffer_region(handle)
        buffer = Buffer(handle, pointer, region, size, home)
        buffer.new_lease = _lease_type(self, buffer).from_address
        with self._lock:
            starts, buffers = self._index
            at = bisect_right(starts, pointer)
            self._index = (
                [*starts[:at], pointer, *starts[at:]],
                [*buffers[:at], buffer, *buffers[at:]],
            )
        self._tell(("look",))  # that there is something to trim one day
        return buffer

    def find(self, pointer: int) -> Buffer | None:
        """The buffer that holds this address."""
        starts, buffers = self._index
        at = bisect_right(starts, pointer) - 1
        if at >= 0 and pointer < buffers[at].end:
            return buffers[at]
        return None

    def free_of(self, home: int) -> deque[Buffer]:
        """The free buffers of a size class, always the same object; those for copies of a call have
        the size with a minus."""
        return self._free.setdefault(home, deque())

    def retire(self, buffer: Buffer) -> None:
        """Has it destroyed by the janitor."""
        self._tell(("buffer", buffer))

    def trim(self, idle_s: float) -> int:
        """Destroys free buffers that nobody took for so long; returns how many."""
        now = time.monotonic()
        num = 0
        for free in list(self._free.values()):
            while True:
                try:
                    buffer = free.popleft()
                except IndexError:
                    break
                if now - buffer.free_since < idle_s:
                    free.appendleft(buffer)
                    break
                self.destroy(buffer)
                num += 1
        return num

    def destroy(self, buffer: Buffer) -> None:
        """Waits for work in flight that uses it."""
        with self._lock:
            starts, buffers = self._index
            at = buffers.index(buffer)
            self._index = (starts[:at] + starts[at + 1 :], buffers[:at] + buffers[at + 1 :])
        self._library.topkd_buffer_destroy(buffer.handle)


class DeviceMemory:
    """A buffer on a GPU. When it goes, the session's janitor frees it; that waits for kernels that
    use it, as cudaFree does."""

    __slots__ = ("__weakref__", "handle", "pointer", "region", "retire")

    def __init__(self, client: int, size_bytes: int, retire: Callable[[int], None]) -> None:
        library = client_library()
        self.handle = 0
        self.handle = create(client, max(size_bytes, 1), lambda: False)
        self.pointer: int = library.topkd_buffer_data(self.handle)
        self.region: int = library.topkd_buffer_region(self.handle)
        self.retire = retire

    def __del__(self) -> None:
        if self.handle:
            self.retire(self.handle)


