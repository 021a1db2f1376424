"""An answer that was given before, given again: the same face as one in the making."""

from __future__ import annotations

from collections import deque

from stretto.cache import CachedAnswer
from stretto.conversation.events import Done, Event, Usage
from stretto.conversation.messages import Request
from stretto.errors import StrettoError
from stretto.pipeline.answer import Listener


class ReplayedAnswer:
    """The events of a cached answer, all at hand: its text as one piece, its end, its usage. See ``Answer``.

    Args:
        request: what was asked.
        cached: what is answered.
        usage: what the client is told, and pays.
        match: how it was found, in a word.
    """

    cache_miss = None
    failure: StrettoError | None = None

    def __init__(self, request: Request, cached: CachedAnswer, usage: Usage, match: str) -> None:
        self.request = request
        self.prompt_tokens = cached.prompt_tokens
        self.headers: list[tuple[bytes, bytes]] = []
        self.listeners: list[Listener] = []
        self.complete = False
        """Whether the client has taken all but the last event."""
        self.match = match
        self._usage = usage
        self._pending: deque[Event] = deque(event for event in cached.events() if not isinstance(event, Done))

    def __aiter__(self) -> ReplayedAnswer:
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        if self._pending:
            return self._hear(self._pending.popleft())
        if self.complete:
            raise StopAsyncIteration
        self.complete = True
        for listener in self.listeners:
            await listener.complete()
        return Done(self._usage)

    def take_ready(self) -> list[Event]:
        """Events that are at hand without waiting."""
        ready = [self._hear(event) for event in self._pending]
        self._pending.clear()
        return ready

    def close(self) -> None:
        """Nothing runs that could be cancelled."""

    @property
    def read(self) -> bool:
        """Whether the client has taken the whole answer."""
        return self.complete

    def usage(self) -> Usage:
        """What the answer cost."""
        return self._usage

    def made(self) -> Usage:
        """What there is to pay for; it was paid at the beginning."""
        return self._usage

    def _hear(self, event: Event) -> Event:
        for listener in self.listeners:
            listener.hear(event)
        return event
