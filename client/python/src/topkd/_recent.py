"""Requests that come again and again with the same array are filled in once.

A server selects from the same shared array at every step. Nothing about such a request changes but
where the result goes, so the request as it was sent is kept and copied. It is used only for the very
same array object, alive and of the same shape, strides and type, with the same options: then its
memory, and with it the region, is what it was.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from . import _abi
from ._buffers import Pool
from ._call import Call, num_bytes

ENTRIES_MAX = 64  # choice: arrays that a client remembers


class Recent:
    __slots__ = ("_dtype", "_options", "_reference", "_shape", "_size", "_strides", "_template",
                 "_values_at", "result_shape")

    def __init__(
        self, scores: Any, options: tuple[Any, ...], call: Call, shape: tuple[int, ...],
        want_values: bool,
    ) -> None:
        self._reference = weakref.ref(scores)
        self._shape, self._strides, self._dtype = scores.shape, scores.strides, scores.dtype
        self._options = options
        self._template = bytes(call.request)
        self.result_shape = shape
        self._values_at = num_bytes(shape) if want_values else 0
        self._size = num_bytes(shape) * (2 if want_values else 1)

    def is_for(self, scores: Any, options: tuple[Any, ...]) -> bool:
        alive: Any = self._reference()
        return bool(
            alive is scores
            and self._options == options
            and scores.shape == self._shape
            and scores.strides == self._strides
            and scores.dtype is self._dtype
        )

    def request(self, pool: Pool) -> tuple[Any, Any] | None:
        """The request with room for a result, and the lease of that; None: go the long way."""
        lease = pool.try_lease(self._size)
        if lease is None:
            return None
        request = _abi.SelectRequest.from_buffer_copy(self._template)
        request.indices.region = lease.buffer.region
        if self._values_at:
            request.values.region = lease.buffer.region
        return request, lease

    def results(self, lease: Any) -> Any:
        ndarray = sys.modules["numpy"].ndarray
        indices = ndarray(self.result_shape, "i4", lease)
        if not self._values_at:
            return indices
        return indices, ndarray(self.result_shape, "f4", lease, self._values_at)


class RecentCalls:
    """Those of one client. Any thread: entries are replaced, never changed."""

    def __init__(self) -> None:
        self._entries: dict[int, Recent] = {}

    def find(self, scores: Any, options: tuple[Any, ...]) -> Recent | None:
        recent = self._entries.get(id(scores))
        return recent if recent is not None and recent.is_for(scores, options) else None

    def note(
        self, scores: Any, options: tuple[Any, ...], call: Call, shape: tuple[int, ...],
        want_values: bool,
    ) -> None:
        """After a selection went well: remembers it, if everything of it was read in place."""
        numpy = sys.modules.get("numpy")
        if numpy is None or type(scores) is not numpy.ndarray or call.num_staged > 0:
            return
        if len(self._entries) >= ENTRIES_MAX:
            self._entries = {}
        self._entries[id(scores)] = Recent(scores, options, call, shape, want_values)
