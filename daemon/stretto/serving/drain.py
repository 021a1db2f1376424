"""The way out: what an application can know about the server's end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from starlette.types import Scope

from stretto.errors import Unavailable

T = TypeVar("T")


class Drain:
    """Two moments in the life of a server, one object for all its requests (``drain_of(scope)``).

    Attributes:
        stopping: no new connections; requests in flight go on.
        ending: the grace is over; a request must now send its last word, and is cut a moment later.
    """

    def __init__(self, stopping: trio.Event | None = None) -> None:
        self.stopping = trio.Event() if stopping is None else stopping
        self.ending = trio.Event()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work unless the grace ends first.

        Raises:
            Unavailable: code ``draining``; the work was cancelled.
            Exception: whatever the work raises, as it is.
        """
        result: list[T] = []
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_end, nursery.cancel_scope)
            try:
                result.append(await work())
            except Exception as error:  # raised below: a nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if not result:
            raise drain_error()
        return result[0]

    async def _cancel_at_end(self, scope: trio.CancelScope) -> None:
        await self.ending.wait()
        scope.cancel()


def drain_of(scope: Scope) -> Drain:
    """The drain of the server that a request came through; one that never ends where there is no such server."""
    drain = scope.get("state", {}).get("drain")
    return drain if isinstance(drain, Drain) else Drain()


def drain_error() -> Unavailable:
    """What a request is told that the server's end has cut short."""
    return Unavailable(
        "The server is shutting down and could not finish this request in time.",
        code="draining",
        remedy="Send it again once the server is back.",
        retry_after_s=5,
    )
