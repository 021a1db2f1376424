"""A small pipeline with the real one's face, whose every step a test can hold back or break."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoTokenizer
from stretto.conversation import ChatTemplate, encode_chat
from stretto.conversation.events import Done, Event, Finish, TextDelta, Usage
from stretto.conversation.messages import Request
from stretto.errors import StrettoError
from stretto.pipeline import Health, ServedModel, Tokens

MODEL = ServedModel(
    id="pulled/tiny",
    aliases=("tiny", "tiny.gguf"),
    created=1_700_000_000,
    context_tokens=512,
    family="llama",
    backend="echo",
    device="cpu",
    dtype="float32",
)


ECHO_TEMPLATE = ChatTemplate(ECHO_CHAT_TEMPLATE)


async def echo_prompt(request: Request) -> list[int]:
    return encode_chat(ECHO_TEMPLATE, EchoTokenizer(), request)


class FakeAnswer:
    """Yields what it is given, each piece as soon as the test lets it."""

    def __init__(self, events: list[Event], pace: trio.Semaphore | None, failure: Exception | None) -> None:
        self._events = deque(events)
        self._pace = pace
        self._failure = failure
        self.cache_miss: str | None = "16:diverged"
        self.prompt_tokens = 7
        self.headers: list[tuple[bytes, bytes]] = []

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._pace is not None:
            await self._pace.acquire()
        if not self._events:
            if self._failure is not None:
                raise self._failure
            raise StopAsyncIteration
        return self._events.popleft()

    def take_ready(self) -> list[Event]:
        if self._pace is not None:
            return []
        ready = [event for event in self._events if isinstance(event, TextDelta)]
        for event in ready:
            self._events.remove(event)
        return ready


@dataclass
class FakePipeline:
    """Echoes the last message, word by word.

    Attributes:
        refusal: raised by ``answer`` before anything else.
        failure: raised by the answer after its text.
        pace: when set, each event costs one release.
        begun, ended: how many answers were entered and left, and ``cancelled`` how many of those early.
    """

    refusal: Exception | None = None
    failure: Exception | None = None
    pace: trio.Semaphore | None = None
    begun: int = 0
    ended: int = 0
    cancelled: int = 0
    drained: int = 0
    live: dict[str, str] = field(default_factory=dict)
    current: Health = field(
        default_factory=lambda: Health(live=True, ready=True, state="ready", detail={"steps": 3})
    )
    model: ServedModel = MODEL
    tokens: Tokens = field(default_factory=lambda: Tokens(EchoTokenizer(), echo_prompt))
    entered: trio.Event = field(default_factory=trio.Event)
    left: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[FakeAnswer]:
        self.model.resolve(request.model)
        if self.refusal is not None:
            raise self.refusal
        words = request.messages[-1].text.split()
        events: list[Event] = [TextDelta(0, word) for word in words]
        if self.failure is None:
            events += [Finish(0, "stop"), Done(Usage(3, len(words)))]
        self.begun += 1
        self.live[request.id] = "generating"
        self.entered.set()
        try:
            yield FakeAnswer(events, self.pace, self.failure)
        except BaseException as error:  # a nursery may hand on a cancellation in a group
            self.cancelled += 0 if isinstance(error, Exception) else 1
            raise
        finally:
            del self.live[request.id]
            self.ended += 1
            self.left.set()

    async def count_tokens(self, request: Request) -> int:
        self.model.resolve(request.model)
        return sum(len(message.text.split()) for message in request.messages)

    def health(self) -> Health:
        return self.current

    def requests(self) -> list[dict[str, object]]:
        return [{"id": name, "phase": phase} for name, phase in self.live.items()]

    def cancel(self, request_id: str) -> bool:
        return request_id in self.live

    def status(self) -> dict[str, object]:
        return {"state": self.current.state, "requests": len(self.live)}


def stretto_error(status: int, code: str, retry_after_s: float | None = None) -> StrettoError:
    """An error as the pipeline would raise it."""
    return StrettoError("It is so.", code=code, status=status, param="model", retry_after_s=retry_after_s)
