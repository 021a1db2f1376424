"""One answer in the making: engine updates in, conversation events out."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stretto.conversation import PromptEcho, TextAssembler
from stretto.conversation.events import Done, Event, Finish, TextDelta, ToolCallDelta, ToolCallStart, Usage
from stretto.conversation.messages import Request
from stretto.engine import CacheMiss, Generation, Outcome, Phase, Update
from stretto.errors import EngineError, RequestCancelled, StrettoError


@dataclass(slots=True)
class Said:
    """What an answer was, for when it comes back.

    Attributes:
        token_ids: as they were drawn, without an end token.
        text, calls: what its reader got of them.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, ToolCallStart):
            self.calls.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            name, arguments = self.calls[-1]
            self.calls[-1] = name, arguments + event.arguments


class Choice:
    """One of a request's answers: joins its tokens to text and knows when it has ended."""

    def __init__(self, index: int, assembler: TextAssembler, echo: PromptEcho | None = None) -> None:
        self.index = index
        self.outcome: Outcome | None = None
        self.ended = False
        self.failure: StrettoError | None = None
        self.completion_tokens = 0
        self.said = Said()
        self._assembler = assembler
        self._echo = echo
        self._logprob_sum = 0.0
        self._logprob_count = 0

    @property
    def mean_logprob(self) -> float:
        """Log-probability a token, where it was asked for; of no token, the lowest there is."""
        return self._logprob_sum / self._logprob_count if self._logprob_count else -math.inf

    @property
    def reasoning_tokens(self) -> int:
        """Those of its tokens that it spent on thinking."""
        return self._assembler.reasoning_tokens

    def accept(self, update: Update) -> list[Event]:
        """Events that an update brings; the text that came before a failure is among them, the failure is in ``failure``."""
        outcome = update.outcome
        tokens = update.tokens
        self.completion_tokens += len(tokens)
        for token in tokens:
            if token.logprob is not None:
                self._logprob_sum += token.logprob
                self._logprob_count += 1
        echoed: list[Event] = [] if self._echo is None else [*self._echo.push(update.prompt)]
        if outcome is not None:
            self.outcome = outcome
            if outcome.reason == "stop" and tokens:
                tokens = tokens[:-1]  # the end token is counted, but is no text
        self.said.token_ids += [token.id for token in tokens]
        events = echoed + self._assembler.push(tokens)
        if self._assembler.stopped is not None:
            self.completion_tokens = self._assembler.counted_tokens
            self.ended = True
            events += self._assembler.close("stop")
        elif outcome is not None:
            self.ended = True
            if outcome.phase is Phase.FINISHED:
                if outcome.reason == "stop" and update.tokens:
                    self._assembler.end(update.tokens[-1])
                events += self._assembler.close(outcome.reason or "stop")
            else:
                events += self._assembler.finish()
                self.failure = outcome.error or (
                    cancelled_error()
                    if outcome.phase is Phase.CANCELLED
                    else EngineError("The sequence failed for an unknown reason.")
                )
        for event in events:
            self.said.add(event)
        return events

    @property
    def said_whole(self) -> bool:
        """Whether its reader got all that it said. What a stop string cut off is not to come back."""
        finished = self.outcome is not None and self.outcome.phase is Phase.FINISHED
        return self.ended and finished and self._assembler.stopped is None


class Listener(Protocol):
    """Hears an answer while its client reads it."""

    def hear(self, event: Event) -> None:
        """An event of the answer, as soon as there is one."""
        ...

    async def complete(self) -> None:
        """All choices have ended well, and the client has taken all but the last event. What this raises ends the answer."""
        ...


@dataclass(slots=True)
class Progress:
    """Where a live request is, for the log and for ``GET /admin/requests``. ``prompts`` are the tokens of each of its prompts."""

    request: Request
    started: float
    phase_started: float
    phase: str = "accepted"
    prompts: tuple[int, ...] = ()
    cached_tokens: int = 0
    cache_miss: CacheMiss | None = None
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    finish_reasons: tuple[str, ...] = ()
    cancel_requested: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(self.prompts)


class Answer:
    """The events of one request. Iterate it once; leaving early cancels what still runs.

    Args:
        request: what was asked.
        generation: its sequences in the engine.
        assembler: makes the assembler of the choice with an index.
        progress: told as the request goes on.
        on_phase: called when its phase changes.
        clock: monotonic seconds.
        cache_block_tokens: tokens of a block of the prefix cache, or 0 where there is none.
        echo: makes what begins the choice with an index, where answers begin with their prompt.
        remember: called with each answer that its reader got whole.
    """

    def __init__(
        self,
        request: Request,
        generation: Generation,
        assembler: Callable[[int], TextAssembler],
        progress: Progress,
        on_phase: Callable[[Progress], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        cache_block_tokens: int = 0,
        echo: Callable[[int], PromptEcho | None] = lambda index: None,
        settle: Callable[[Usage], Awaitable[Usage]] | None = None,
        remember: Callable[[Said], None] | None = None,
    ) -> None:
        self.request = request
        self.prompt_tokens = progress.prompt_tokens
        self.headers: list[tuple[bytes, bytes]] = []
        """What the reply's head is to say of how the answer came about."""
        self.listeners: list[Listener] = []
        """Who else hears the answer; before its first event is read."""
        self._generation = generation
        self._choices = {
            sequence_id(request.id, index): Choice(index, assembler(index), echo(index))
            for index in range(request.sequences)
        }
        self._progress = progress
        self._on_phase = on_phase
        self._clock = clock
        self._cache_block_tokens = cache_block_tokens
        self._remember = remember
        self._settle = settle
        self._settled: Usage | None = None
        self._reuse: dict[int, dict[str, tuple[int, CacheMiss | None]]] = {}  # by the prompt's place
        # By sequence: tokens of drafts that were accepted, and rejected.
        self._drafts: dict[str, tuple[int, int]] = {}
        self._read: dict[int, int] = {}  # tokens of each prompt, likewise
        self._pending: deque[Event] = deque()
        self._done = False
        self.failure: StrettoError | None = None
        """What ``__anext__`` raises once the text before it has been read."""

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Event:
        """The next event: text as it is made, a Finish for each choice, then Done with the usage.

        A class and not an async generator: a reader that is cancelled leaves nothing for the garbage collector to close.

        Raises:
            StrettoError: the generation failed or was cancelled from outside.
        """
        while not self._pending:
            if self.failure is not None:
                raise self.failure
            if self._done:
                raise StopAsyncIteration
            if self.complete:
                self._done = True
                for listener in self.listeners:
                    await listener.complete()
                return Done(self._settled or self.usage())
            self._accept(await self._generation.__anext__())
            if self.complete and self.failure is None:
                await self._pay()
        return self._pending.popleft()

    async def _pay(self) -> None:
        """Have the answer paid before anybody is told that it has ended; where that fails, it does not end well."""
        try:
            self._settled = self.usage() if self._settle is None else await self._settle(self.usage())
        except StrettoError as error:
            self.failure = error
            self._pending = deque(event for event in self._pending if not isinstance(event, Finish))

    def take_ready(self) -> list[Event]:
        """Events that are at hand without waiting, so that a writer can send them together."""
        ready = list(self._pending)
        self._pending.clear()
        return ready

    def _accept(self, update: Update) -> None:
        choice = self._choices[update.id]
        if choice.ended:
            return  # made before the engine saw that a stop string had ended this choice
        self._note(update)
        for event in choice.accept(update):
            if isinstance(event, Finish):
                self._progress.finish_reasons += (event.reason,)
            for listener in self.listeners:
                listener.hear(event)
            self._pending.append(event)
        self.failure = self.failure or choice.failure
        if choice.said_whole and self._remember is not None:
            self._remember(choice.said)
        if choice.ended and choice.outcome is None:
            self._generation.cancel(update.id)

    @property
    def choices(self) -> Sequence[Choice]:
        """All choices, by index."""
        return tuple(self._choices.values())

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.ended for choice in self._choices.values())

    @property
    def read(self) -> bool:
        """Whether it was read to its last event."""
        return self._done

    @property
    def cache_miss(self) -> CacheMiss | None:
        """Why not all of the prompt that could be reused was; known from the first event on."""
        return self._progress.cache_miss

    def close(self) -> None:
        """Cancel whatever still runs, and count what was made until now. Idempotent."""
        for update in self._generation.take_ready():
            self._accept(update)
        for name, choice in self._choices.items():
            if choice.outcome is None:
                self._generation.cancel(name)

    def usage(self) -> Usage:
        """Tokens so far."""
        cached = self._progress.cached_tokens
        block = self._cache_block_tokens
        # Only full blocks are kept, and the last token of a prompt is computed again in any case.
        reusable = sum((tokens - 1) // block * block for tokens in self._progress.prompts) if block else 0
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(choice.completion_tokens for choice in self._choices.values()),
            cached_tokens=cached,
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices.values()),
            stored_tokens=max(0, reusable - cached),
            # Drafts may reach beyond a stop string.
            accepted_tokens=sum(
                min(accepted, self._choices[name].completion_tokens)
                for name, (accepted, _) in self._drafts.items()
            ),
            rejected_tokens=sum(rejected for _, rejected in self._drafts.values()),
        )

    def made(self) -> Usage:
        """What was made until now, for whoever is to pay for it: the prompt as far as it was read, and the tokens so far."""
        usage = self.usage()
        read = sum(
            min(tokens, self._read.get(place, 0)) for place, tokens in enumerate(self._progress.prompts)
        )
        return replace(usage, prompt_tokens=read, cached_tokens=min(usage.cached_tokens, read))

    def outcomes(self) -> Sequence[Outcome]:
        """Outcomes of the choices whose sequence the engine has ended."""
        return [choice.outcome for choice in self._choices.values() if choice.outcome is not None]

    def _note(self, update: Update) -> None:
        progress = self._progress
        progress.prefilled_tokens = max(progress.prefilled_tokens, update.prefilled_tokens)
        progress.completion_tokens += len(update.tokens)
        # Of several answers to a prompt one computes it and the others share it: what the request saved is what that one found.
        place = self._choices[update.id].index // self.request.drawn
        self._read[place] = max(self._read.get(place, 0), update.prefilled_tokens)
        self._drafts[update.id] = update.accepted_tokens, update.rejected_tokens
        self._reuse.setdefault(place, {})[update.id] = update.cached_tokens, update.cache_miss
        least = [min(found.values(), key=lambda reuse: reuse[0]) for found in self._reuse.values()]
        progress.cached_tokens = sum(tokens for tokens, _ in least)
        progress.cache_miss = next((miss for _, miss in least if miss is not None), None)
        if update.tokens and progress.first_token_s is None:
            progress.first_token_s = self._clock() - progress.started
        # A short answer may arrive whole, with its end: it was being generated all the same.
        reached = (
            update.phase.value
            if update.outcome is None
            else "generating"
            if update.tokens
            else progress.phase
        )
        if _ORDER.index(reached) > _ORDER.index(progress.phase):
            progress.phase = reached
            self._on_phase(progress)


_ORDER = ("accepted", "queued", "prefilling", "generating")


def sequence_id(request_id: str, index: int) -> str:
    """The engine's name for a request's ``index``-th answer."""
    return request_id if index == 0 else f"{request_id}-{index}"


def cancelled_error() -> RequestCancelled:
    """What a caller is told whose request was ended from outside."""
    return RequestCancelled("The request was cancelled by the daemon's administrator or by its shutdown.")
