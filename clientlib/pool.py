"""Idle connections, kept for the next call. Safe in threads and across fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from clientlib.link import Link


class _Shelf:
    """The idle connections of one process. ``links`` is used as a stack: the warmest goes out first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.links: list[Link] = []


class ConnectionPool:
    """At most ``max_idle`` connections, none idle for longer than ``max_idle_s``.

    Each process has its own shelf, found by its pid: a child must not use its parent's connections, and must not take a lock
    that another thread of the parent held at the fork. ``dict.setdefault`` makes the shelf without a lock.
    """

    def __init__(
        self, *, max_idle: int = 8, max_idle_s: float = 4.0, clock: Callable[[], float] = time.monotonic
    ):
        self._max_idle = max_idle
        # Below the keep-alive time of common servers (5 s), so that a request seldom meets a connection just being closed.
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._shelves: dict[int, _Shelf] = {}
        self._closed = False

    def take(self) -> Link | None:
        """An idle connection that still looks usable, or None."""
        shelf = self._shelf()
        while True:
            with shelf.lock:
                if not shelf.links:
                    return None
                link = shelf.links.pop()
            if self._clock() - link.idle_since_s <= self._max_idle_s and not link.is_stale():
                return link
            link.close()

    def give(self, link: Link) -> None:
        """Take back a connection after a whole exchange; closes it when it cannot be kept."""
        if link.reusable and link.wire.recycle():
            link.idle_since_s = self._clock()
            shelf = self._shelf()
            with shelf.lock:
                if not self._closed and len(shelf.links) < self._max_idle:
                    shelf.links.append(link)
                    return
        link.close()

    def close(self) -> None:
        """Close every idle connection; ones given back later are closed at once. Idempotent."""
        self._closed = True
        shelf = self._shelf()
        with shelf.lock:
            links, shelf.links = shelf.links, []
        for link in links:
            link.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def stats(self) -> dict[str, int]:
        """``idle``: connections waiting for a call."""
        shelf = self._shelf()
        with shelf.lock:
            return {"idle": len(shelf.links)}

    def _shelf(self) -> _Shelf:
        pid = os.getpid()
        shelf = self._shelves.get(pid)
        if shelf is None:
            shelf = self._shelves.setdefault(pid, _Shelf())
            # The parent's: closing our copies of the descriptors leaves its connections whole (see Link.cut). Copying a
            # dict's keys to a set is one step, which no other thread can disturb.
            for other in set(self._shelves) - {pid}:
                inherited = self._shelves.pop(other, None)
                for link in inherited.links if inherited else ():
                    link.close()
        return shelf
