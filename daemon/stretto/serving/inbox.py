"""What a request's application may receive: body pieces, then that the client has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import trio
from starlette.types import Message

_HIGH_WATER_BYTES = 256 * 1024


class Inbox:
    """The receiving half of one request, between the connection's reader and the application.

    Putting never blocks, so the news that the client has gone is never stuck behind a body that nobody reads; the reader asks
    ``wait_room`` before it reads on. Receiving does not pass through a checkpoint when there is something to receive, so that
    an application which polls in a cancelled scope still sees it.

    Args:
        before_wait: called when the application starts to wait for a body that has not come (to say ``100 Continue``).
    """

    def __init__(self, before_wait: Callable[[], Awaitable[None]]) -> None:
        self._before_wait = before_wait
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._complete = False
        self._end_told = False
        self._gone = False
        self._changed = trio.Event()

    async def put(self, message: object) -> None:
        """Take one ASGI receive event. Never blocks."""
        event = cast("dict[str, object]", message)
        if event["type"] == "http.disconnect":
            self.hang_up()
            return
        body = cast(bytes, event["body"])
        if body:
            self._pieces.append(body)
            self._held_bytes += len(body)
        if not event["more_body"]:
            self._complete = True
        self._stir()

    def hang_up(self) -> None:
        """The client has gone, or the reply is complete: there is nothing more to come."""
        self._gone = True
        self._stir()

    @property
    def gone(self) -> bool:
        """Whether ``hang_up`` was called."""
        return self._gone

    @property
    def full(self) -> bool:
        """Whether the reader should wait before it reads on."""
        return self._held_bytes >= _HIGH_WATER_BYTES and not self._gone

    async def wait_room(self) -> None:
        """Return when there is room again, or no more use in waiting."""
        while self.full:
            await self._changed.wait()

    async def receive(self) -> Message:
        """The next ASGI event. All body pieces at hand come as one; after the end always ``http.disconnect``.

        A body that broke off is not handed out any further: the application learns at once that the client has gone.
        """
        while True:
            if self._gone and not self._complete:
                return {"type": "http.disconnect"}
            if self._pieces or (self._complete and not self._end_told):
                return self._take()
            if self._gone:
                return {"type": "http.disconnect"}
            changed = self._changed
            if not self._complete:
                await self._before_wait()
            await changed.wait()

    def _take(self) -> Message:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        self._end_told = self._complete
        self._stir()
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    def _stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
