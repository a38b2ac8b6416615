"""What a request needs of the daemon before it can be sent, for callers that must not wait: event
loops. A request that needs something says so by ``Deferred``; another thread sees to it, and the
request is made once more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ._regions import Region
from ._session import Session
from ._tensors import Tensor
from .errors import Error


class Deferred(Exception):
    """What would wait for the daemon, in a thread that must not: ``work`` for another one, after which
    the request is made once more."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


class Ahead:
    """What was registered and made in other threads for a request. ``close`` it when the request has
    been made, or will not be."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._regions: list[Region] = []  # acquired: they stay until the request has them
        self._errors: dict[tuple[int, int, bool], Error] = {}  # of registrations
        self._made: list[Any] = []  # in the order in which the request asks
        self._lock = threading.Lock()
        self._is_closed = False

    def region_of(self, tensor: Tensor, is_output: bool) -> Region:
        region = self._session.regions.try_acquire(tensor, is_output)
        if region is not None:
            return region
        key = (tensor.pointer, tensor.span(), is_output)
        if key in self._errors:
            raise self._errors[key]

        def register() -> None:
            try:
                made = self._session.regions.acquire(tensor, is_output)
            except Error as error:
                self._errors[key] = error
                return
            with self._lock:
                if not self._is_closed:
                    self._regions.append(made)
                    return
            self._session.regions.release(made)  # the task has gone

        raise Deferred(register)

    def device_memory(self, number: int, size_bytes: int) -> Any:
        """The request's `number`-th thing to be made."""
        if number == len(self._made):
            raise Deferred(lambda: self._made.append(self._session.device_memory(size_bytes)))
        return self._made[number]

    def made(self, number: int, make: Callable[[], Any]) -> Any:
        """The same, made here: an allocator may well give other memory when it is asked again, and
        that would have to be registered in turn."""
        if number == len(self._made):
            self._made.append(make())
        return self._made[number]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for region in self._regions:
            self._session.regions.release(region)
