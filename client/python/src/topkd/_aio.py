"""Event loops that wait for selections: each looks at the descriptor of finished operations."""

from __future__ import annotations

import asyncio

from ._library import client_library
from ._session import Session

PAUSE_S = 0.001  # choice: between two looks whether a request may enter


class Loops:
    """Those of one client; there may be several, in several threads. Whichever looks first takes
    what has finished and tells the loop that waits for it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fd: int = client_library().topkd_client_fd(session.handle)
        self._watching: dict[asyncio.AbstractEventLoop, int] = {}  # selections that each waits for

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more; with the session's lock, in the loop's thread."""
        num = self._watching.get(loop, 0)
        self._watching[loop] = num + 1
        self._session.num_awaiting += 1
        if num == 0:
            loop.add_reader(self._fd, self._readable)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """One less; without the lock, in the loop's thread."""
        with self._session.lock:
            num = self._watching[loop] - 1
            self._watching[loop] = num
            if num == 0:
                del self._watching[loop]
                loop.remove_reader(self._fd)
            self._session.num_awaiting -= 1
        self._session.look()

    def _readable(self) -> None:
        with self._session.lock:
            self._session.reap()
