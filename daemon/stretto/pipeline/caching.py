"""The answer cache in the walk of a request: looked through before anything is rendered, and fed with answers that ended well.

It works on the canonical request and on events, so it is the same for every dialect, and a hit is rendered like any other answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stretto.cache import AnswerCache, Lookup, cacheable_answer
from stretto.conversation import AnswerFormat
from stretto.conversation.events import Done, Event, Usage
from stretto.conversation.messages import Reasoning, Request
from stretto.conversation.reasoning import reasoning_variables
from stretto.pipeline.answer import Answer
from stretto.pipeline.replay import ReplayedAnswer

RESULT = b"x-stretto-cache-result"
"""``hit``, ``miss``, ``refresh`` or ``bypass``; nothing where there is no cache."""
MATCH = b"x-stretto-cache-match"
"""Of a hit: ``exact`` or ``semantic``."""
SIMILARITY = b"x-stretto-cache-similarity"
"""Of a semantic hit: cosine of the two questions."""


class Caching:
    """The stage. One for the daemon's life.

    Args:
        cache: what was answered before, or None where nothing is kept.
        form: how the model writes its answers.
        memory: whether requests recall what was said before; their answers are then of use to their own session alone.
        default_max_tokens: the answer's limit when a request names none.
    """

    def __init__(
        self,
        cache: AnswerCache | None,
        form: AnswerFormat | None,
        *,
        memory: bool = False,
        default_max_tokens: int | None = None,
    ) -> None:
        self._cache = cache
        self._form = form
        self._memory = memory
        self._default_max_tokens = default_max_tokens

    async def look_up(self, request: Request) -> Lookup | None:
        """Look for an answer; None where there is no cache. Never fails."""
        if self._cache is None:
            return None
        caller = request.caller
        session = caller.session if self._memory and caller.memory != "off" else None
        limit = self._default_max_tokens if request.max_tokens is None else request.max_tokens
        return await self._cache.look_up(self._heard(request), session=session, max_tokens=limit)

    def _heard(self, request: Request) -> Request:
        """The request without wishes about reasoning, where the model does not reason and its template does not read them."""
        form = self._form
        if form is None or form.reasoning is not None or reasoning_variables(request.reasoning, form.reads):
            return request
        return replace(request, reasoning=Reasoning())

    def attend(self, lookup: Lookup | None, answer: Answer | ReplayedAnswer) -> None:
        """Say in an answer's head what came of looking, and have a new answer kept when it has ended well."""
        if self._cache is None or lookup is None:
            return
        answer.headers.append((RESULT, lookup.outcome.encode()))
        if lookup.match is not None:
            answer.headers.append((MATCH, lookup.match.encode()))
        if lookup.similarity is not None:
            answer.headers.append((SIMILARITY, f"{lookup.similarity:.3f}".encode()))
        if lookup.key is not None and lookup.answer is None:
            answer.listeners.append(Keeper(self._cache, lookup, answer.usage))


class Keeper:
    """Hears one answer, and keeps it when it is complete and plain. See ``Listener``."""

    def __init__(self, cache: AnswerCache, lookup: Lookup, usage: Callable[[], Usage]) -> None:
        self._cache = cache
        self._lookup = lookup
        self._usage = usage
        self._events: list[Event] = []

    def hear(self, event: Event) -> None:
        """Take in an event of the answer."""
        self._events.append(event)

    async def complete(self) -> None:
        """Keep the answer."""
        answer = cacheable_answer([*self._events, Done(self._usage())])
        if answer is not None:
            await self._cache.keep(self._lookup, answer)
