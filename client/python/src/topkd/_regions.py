"""CUDA memory of the caller's, registered once an allocation.

Frameworks cut tensors out of large segments and hand the same memory out again and again. So a
region is made of the whole allocation that holds a tensor, and the tensor named by its offset. Before
each use the driver is asked (``topkd_cuda_allocation``) which allocation the pointer is in: base,
size and an id that no other allocation ever has. Only a region of exactly these is used, so memory
that was freed, and perhaps made again at the same address, is never mistaken for what was
registered.

A region stays while a storage that was seen in it lives (PyTorch; a weak reference tells), and
afterwards, or where the framework has none, for ``idle_s`` after its last use, because the next step
will want the same segment. There are at most ``idle_max`` idle ones; the one used longest ago goes
first. A region goes only when no call is using it, and the C library waits for work in flight.
"""

from __future__ import annotations

import ctypes as c
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import _abi
from ._buffers import BUSY_ATTEMPTS, BUSY_PAUSE_S
from ._library import client_library
from ._tensors import Tensor
from .errors import Error, from_status, named

Key = tuple[int, int, int]  # base, size, id of the allocation


class Region:
    __slots__ = ("__weakref__", "base", "handle", "is_current", "is_writable", "key", "last_use",
                 "storages", "users")

    def __init__(self, key: Key, base: int, handle: int, is_writable: bool) -> None:
        self.key = key
        self.base = base
        self.handle = handle
        self.is_writable = is_writable
        self.is_current = True  # in the map: the one to use for its key
        self.users = 0  # calls that are about to name it in a request
        self.storages: dict[int, Any] = {}  # address of a storage: weak reference
        self.last_use = 0.0

    def is_idle(self) -> bool:
        """With the lock. Forgets storages that have gone."""
        for address, storage in list(self.storages.items()):
            if storage() is None:
                del self.storages[address]
        return self.users == 0 and not self.storages


class Regions:
    """The regions of one session of a GPU."""

    def __init__(
        self, client: int, tell: Callable[[Any], None], idle_max: int, idle_s: float
    ) -> None:
        self._library = client_library()
        self._client = client
        self._tell = tell  # hands something to the janitor; may be called anywhere
        self._idle_max = idle_max
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._making = threading.Lock()  # held over a registration: one at a time
        self._map: dict[Key, Region] = {}
        self._others: list[Region] = []  # replaced by writable ones, or refused to go
        self.num_registrations = 0

    def __len__(self) -> int:
        return len(self._map) + len(self._others)

    def acquire(self, tensor: Tensor, is_output: bool) -> Region:
        """The region of a tensor; ``release`` it once the request that names it is on its way.
        Waits for the daemon where the memory is not registered yet."""
        key = self._key_of(tensor)
        region = self._find(key, is_output)
        if region is None:
            _refuse_capture(tensor)
            region = self._make(key, tensor, is_output)
        return self._watched(region, tensor)

    def try_acquire(self, tensor: Tensor, is_output: bool) -> Region | None:
        """The same without waiting; None: ``acquire`` it in another thread."""
        region = self._find(self._key_of(tensor), is_output)
        if region is None:
            _refuse_capture(tensor)  # of the stream that is current here
            return None
        return self._watched(region, tensor)

    def _key_of(self, tensor: Tensor) -> Key:
        allocation = _abi.Allocation()
        status = self._library.topkd_cuda_allocation(
            self._client, tensor.pointer, tensor.span(), c.byref(allocation)
        )
        if status != 0:
            raise from_status(status)
        return (allocation.base or 0, allocation.size_bytes, allocation.id)

    def _watched(self, region: Region, tensor: Tensor) -> Region:
        if tensor.framework == "torch":
            self._watch(region, tensor.owner)
        return region

    def known(self) -> tuple[dict[Key, Region], threading.Lock]:
        """The present ones and the lock to read them with. While it is held none of them goes."""
        return self._map, self._lock

    def _find(self, key: Key, is_output: bool) -> Region | None:
        with self._lock:
            region = self._map.get(key)
            if region is None or (is_output and not region.is_writable):
                return None
            region.users += 1
            return region

    def release(self, region: Region) -> None:
        with self._lock:
            region.users -= 1
            region.last_use = time.monotonic()

    def _watch(self, region: Region, tensor: Any) -> None:
        """Keeps the region while the tensor's storage lives."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = region.storages.get(address)
        if known is not None and known() is not None:
            return
        # No callback: it would wake a thread for every result that is dropped, which takes longer
        # than a selection. `trim` looks.
        with self._lock:
            region.storages[address] = weakref.ref(storage)

    # ---- Making one ------------------------------------------------------------------------------

    def _make(self, key: Key, tensor: Tensor, is_output: bool) -> Region:
        with self._making:
            region = self._find(key, is_output)  # another thread may have been faster
            if region is not None:
                return region
            access = _abi.ACCESS_READ_WRITE if is_output else _abi.ACCESS_READ
            base, handle = self._register(key, tensor, access)
            region = Region(key, base, handle, is_output)
            region.users = 1
            with self._lock:
                before = self._map.get(key)
                if before is not None:
                    before.is_current = False
                    self._others.append(before)
                self._map[key] = region
                self.num_registrations += 1
            self._tell(("look",))
            return region

    def _register(self, key: Key, tensor: Tensor, access: int) -> tuple[int, int]:
        """The whole allocation; where that is beyond a limit, the tensor's own part of it."""
        error: Error | None = None
        for base, size in ((key[0], key[1]), (tensor.pointer, tensor.span())):
            for attempt in range(BUSY_ATTEMPTS + 2):
                handle = c.c_void_p()
                status = self._library.topkd_region_register_cuda(
                    self._client, base, size, access, c.byref(handle)
                )
                if status == 0:
                    return base, handle.value or 0
                error = from_status(status)
                if error.name == "TOPKD_E_BUSY" and attempt < BUSY_ATTEMPTS:
                    time.sleep(BUSY_PAUSE_S)  # a worker takes only so many registrations a second
                    continue
                if error.name != "TOPKD_E_LIMIT":
                    raise error
                if not self.trim(0.0):
                    break
        assert error is not None
        raise error

    # ---- Letting go ------------------------------------------------------------------------------

    def trim(self, idle_s: float | None = None) -> int:
        """Ends idle regions: all unused for ``idle_s``, and those above the limit. How many."""
        idle_s = self._idle_s if idle_s is None else idle_s
        with self._lock:
            idle = sorted(
                (r for r in (*self._map.values(), *self._others) if r.is_idle()),
                key=lambda region: region.last_use,
            )
            limit = time.monotonic() - idle_s
            excess = len(idle) - self._idle_max
            ending = [
                region
                for i, region in enumerate(idle)
                if i < excess or region.last_use <= limit or not region.is_current
            ]
            for region in ending:
                if region.is_current:
                    del self._map[region.key]
                else:
                    self._others.remove(region)
                region.is_current = False
        return sum(self._end(region) for region in ending)

    def _end(self, region: Region) -> int:
        """Waits for work in flight; what outlasts the deadline is tried again later."""
        status = self._library.topkd_region_unregister(region.handle)
        if status != 0 and from_status(status).name == "TOPKD_E_TIMEOUT":
            with self._lock:
                self._others.append(region)
            return 0
        return 1


def _refuse_capture(tensor: Tensor) -> None:
    """Registering while a stream is being captured would break the capture."""
    if tensor.framework != "torch":
        return
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise named(
            "UNSUPPORTED",
            "memory cannot be registered while a stream is being captured: select once before the "
            "capture, and use client.lane(...) inside",
        )
