"""What every wire dialect of answers offers: a body to a request, events to bytes, an error to its envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from stretto.conversation.events import Event
from stretto.conversation.messages import Request
from stretto.errors import StrettoError


class Renderer(Protocol):
    """Renders one request's answer.

    A stream is ``start(…)``, ``event(…)`` for each event, then ``end()``; one that fails is ended by ``error(…)`` and ``end()``.
    """

    def json(self, events: Iterable[Event]) -> bytes:
        """The whole reply, from all the events of an answer."""
        ...

    def start(self, prompt_tokens: int) -> bytes:
        """The first frames."""
        ...

    def event(self, event: Event) -> bytes:
        """The frames for an event; empty when it has none."""
        ...

    def error(self, error: StrettoError) -> bytes:
        """The frames for an error after the first byte."""
        ...

    def end(self) -> bytes:
        """The last frames, after an error too."""
        ...


class Parse(Protocol):
    """Reads a body; raises InvalidRequest for the first thing wrong with it."""

    def __call__(self, body: bytes, *, request_id: str) -> Request: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format of answers.

    Attributes:
        id_prefix: what the ids of its answers begin with, e.g. ``chatcmpl-``.
        parse: see Parse.
        renderer: a Renderer from the request, the Unix seconds at which it came, and the id of the model that answers.
        ping: what is written into a stream that is silent for too long; a comment if the dialect has nothing of its own.
    """

    id_prefix: str
    parse: Parse
    renderer: Callable[[Request, int, str], Renderer]
    ping: bytes = b": ping\n\n"
