"""Session memory in the walk of a request: what is recalled goes into the prompt, what was said is recorded at the end.

It works on the canonical request, so it is the same for every dialect. Memory never makes a request fail: where it has no room, cannot be
read or is not to the template's liking, the request goes on without it, and the reply's head says so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from stretto.conversation.events import Event, Finish, TextDelta, ToolCallStart
from stretto.conversation.messages import Message, Request, TextPart
from stretto.errors import InvalidRequest, StoreError
from stretto.memory import TURN_CHARS, Recollection, SessionMemory
from stretto.pipeline.answer import Answer, Listener

_log = logging.getLogger(__name__)

RECALLED = b"x-stretto-memory-recalled"
"""How many entries are in the prompt, or ``yielded`` (there was no room for them) or ``unavailable`` (the store failed)."""

ROOM_TOKENS = 256
"""What memory leaves at least for an answer whose request names no limit."""

Render = Callable[[Request], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True)
class RememberedPrompt:
    """A prompt, and what memory did for it.

    Attributes:
        ids: tokens.
        recollection: what of the memory is in the prompt, or None.
        told: for the reply's head; None when memory was not asked.
    """

    ids: list[int]
    recollection: Recollection | None = None
    told: str | None = None


class Remembering:
    """The stage. One for the daemon's life.

    Args:
        memory: what is remembered, or None where nothing is.
        context_tokens: for prompt and answer together.
        default_max_tokens: the answer's limit when a request names none; None means all that is left.
    """

    def __init__(
        self, memory: SessionMemory | None, context_tokens: int, default_max_tokens: int | None = None
    ) -> None:
        self._memory = memory
        self._context_tokens = context_tokens
        self._default_max_tokens = default_max_tokens

    async def prompt(self, request: Request, render: Render) -> RememberedPrompt:
        """The prompt of a request, with what is recalled for it.

        Args:
            render: makes token ids of a request; called a second time when memory has to yield.

        Raises:
            InvalidRequest: from ``render``, for the request without memory.
        """
        memory, said = self._memory, _last_said(request)
        if memory is None or request.caller.memory == "off" or said is None:
            return RememberedPrompt(await render(request))
        caller = request.caller
        present = [message.text for message in request.messages if message.role == "user"][:-1]
        try:
            recollection = await memory.recall(caller.tenant, caller.session, said, present)
        except StoreError as error:
            _log.warning("nothing was recalled for request %s (%s)", request.id, error.code)
            return RememberedPrompt(await render(request), told="unavailable")
        if recollection is None:
            return RememberedPrompt(await render(request), told="0")
        try:
            ids = await render(with_recollection(request, recollection))
        except InvalidRequest:  # what the template cannot say, or the context not hold
            return RememberedPrompt(await render(request), told="yielded")
        if not self._leaves_room(request, len(ids)):
            return RememberedPrompt(await render(request), told="yielded")
        count = len(recollection.notes) + len(recollection.exchanges)
        return RememberedPrompt(ids, recollection, str(count))

    def _leaves_room(self, request: Request, prompt_tokens: int) -> bool:
        """Whether a prompt leaves what the request asks for by name, or ``ROOM_TOKENS`` where it does not."""
        named = request.max_tokens is not None and not request.lower_max_tokens
        wanted = self._default_max_tokens if request.max_tokens is None else request.max_tokens
        needed = ROOM_TOKENS if wanted is None else wanted if named else min(wanted, ROOM_TOKENS)
        return self._context_tokens - prompt_tokens >= max(1, needed)

    def attend(self, request: Request, answer: Answer, prompt: RememberedPrompt) -> None:
        """Tell in the answer's head what was recalled, and have the turn recorded when the answer is complete."""
        if prompt.told is not None:
            answer.headers.append((RECALLED, prompt.told.encode()))
        recorder = self.recorder(request)
        if recorder is not None:
            answer.listeners.append(recorder)

    def recorder(self, request: Request) -> Listener | None:
        """Records the turn of a request when its answer is complete; None when there is nothing to be recorded.

        Only an answer of one choice is one: of several, nobody knows which one the client takes.
        """
        said = _last_said(request)
        if (
            self._memory is None
            or request.caller.memory != "on"
            or request.n != 1
            or not (said or "").strip()
        ):
            return None
        assert said is not None
        begun = request.messages[-1].text if request.continues else ""
        return TurnRecorder(self._memory, request, said, begun)


class TurnRecorder:
    """Hears one answer and records it with what the user said, unless it ends in calls of functions or says nothing.

    Args:
        said: the conversation's last user message, as the client sent it: what was recalled is not in it.
        begun: how the client had the answer begin.
    """

    def __init__(self, memory: SessionMemory, request: Request, said: str, begun: str) -> None:
        self._memory = memory
        self._request = request
        self._said = said
        self._answered = begun
        self._recordable = True

    def hear(self, event: Event) -> None:
        """Take in an event of the answer."""
        if isinstance(event, TextDelta):
            if len(self._answered) < TURN_CHARS:
                self._answered += event.text
        elif isinstance(event, ToolCallStart) or (
            isinstance(event, Finish) and event.reason not in ("stop", "length")
        ):
            self._recordable = False

    async def complete(self) -> None:
        """Record the turn. A cancelled call, whose client has gone, has recorded nothing."""
        if not self._recordable or not self._answered.strip():
            return
        caller = self._request.caller
        try:
            await self._memory.record(caller.tenant, caller.session, self._said, self._answered)
        except StoreError as error:
            _log.warning("the turn of request %s was not recorded (%s)", self._request.id, error.code)


def with_recollection(request: Request, recollection: Recollection) -> Request:
    """The request with what was recalled after the client's own system prompt.

    It is added to the last of the leading system messages, and is one of its own where there is none: many templates take one system
    message only, and drop a second one without a word.
    """
    leading = 0
    while leading < len(request.messages) and request.messages[leading].role == "system":
        leading += 1
    messages = list(request.messages)
    if leading:
        own = messages[leading - 1]
        part = TextPart(f"\n\n{recollection.text}")
        messages[leading - 1] = replace(own, content=(*own.content, part))
    else:
        messages.insert(0, Message("system", (TextPart(recollection.text),)))
    return replace(request, messages=tuple(messages))


def _last_said(request: Request) -> str | None:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), None)
