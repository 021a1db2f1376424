"""The walk of a request: admit, render and tokenise, check the context, generate, assemble, account.

Every check that can fail is made in ``Pipeline.answer`` before it yields, so that a refusal still has its HTTP status.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import partial

import trio

from stretto._version import __version__
from stretto.cache import AnswerCache, Lookup
from stretto.conversation import (
    AnswerFormat,
    ChatTemplate,
    RecentTurns,
    Tokenizer,
)
from stretto.conversation.messages import Request
from stretto.engine import EngineClient, SequenceRequest, TokenConstraint
from stretto.errors import InvalidRequest, StrettoError, Unavailable
from stretto.grammar import GrammarCompiler
from stretto.memory import SessionMemory
from stretto.pipeline.admission import Admission
from stretto.pipeline.answer import Answer, Progress, cancelled_error, sequence_id
from stretto.pipeline.best_of import BestAnswer
from stretto.pipeline.billing import Bill, Billing
from stretto.pipeline.caching import Caching
from stretto.pipeline.chat import Chat, ChatPrompt
from stretto.pipeline.fitting import fitting_max_tokens
from stretto.pipeline.health import Health, judge_health
from stretto.pipeline.raw import RawPrompts
from stretto.pipeline.remembering import Remembering
from stretto.pipeline.replay import ReplayedAnswer
from stretto.pipeline.request_log import RequestLines, RequestLog
from stretto.pipeline.served import ServedModel, capabilities_of
from stretto.pipeline.tokens import Tokens


class Pipeline:
    """Joins the stages. One for the daemon's life; all its methods run on the event loop.

    Args:
        model: what is served.
        engine: loaded and running.
        tokenizer, template: the model's own.
        admission: see Admission.
        log: lifecycle lines.
        billing: makes requests pay; None lets everything be free.
        step_deadline_s: a busy engine that has made no step for so long is stalled.
        default_max_tokens: the answer's limit when a request names none; None means all the context that is left.
        tool_dialect: how the model writes calls of functions; ``auto`` goes by the template.
        cache_block_tokens: tokens of a block of the prefix cache, or 0 where there is none.
        memory: what is remembered between requests; None where nothing is.
        cache: what was answered before; None where nothing is kept.
        render_threads: how many prompts may be rendered and tokenised at once, off the loop; and as many grammars compiled.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        model: ServedModel,
        engine: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        admission: Admission,
        log: RequestLog,
        billing: Billing | None = None,
        step_deadline_s: float = 60.0,
        default_max_tokens: int | None = None,
        tool_dialect: str = "auto",
        cache_block_tokens: int = 0,
        memory: SessionMemory | None = None,
        cache: AnswerCache | None = None,
        render_threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        form = None if template is None else AnswerFormat.of(template, tokenizer, tool_dialect)
        self.model = replace(model, capabilities=capabilities_of(form))
        self._admission = admission
        self._log = log
        self._billing = billing or Billing()
        self._step_deadline_s = step_deadline_s
        self._default_max_tokens = default_max_tokens
        self._cache_block_tokens = cache_block_tokens
        self._remembering = Remembering(memory, model.context_tokens, default_max_tokens)
        self._caching = Caching(cache, form, memory=memory is not None, default_max_tokens=default_max_tokens)
        self._render_limiter = trio.CapacityLimiter(render_threads)
        self._grammars = GrammarCompiler(tokenizer, marks=None if form is None else form.marks)
        self._chat = None
        if template is not None and form is not None:
            self._chat = Chat(
                template,
                tokenizer,
                self._grammars,
                form,
                context_tokens=model.context_tokens,
                turns=RecentTurns() if cache_block_tokens else None,
            )
        self._compile_limiter = trio.CapacityLimiter(render_threads)
        self.tokens = Tokens(tokenizer, self._prompt_ids)
        self._lines = RequestLines(log, clock)
        self._clock = clock
        self._started = clock()
        self._live: dict[str, Progress] = {}
        self._reports: dict[str, Callable[[], object]] = {}
        self._draining = False
        self._idle = trio.Event()
        self._idle.set()

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Answer | BestAnswer | ReplayedAnswer]:
        """Run a request. Leaving the block before the last event cancels its work within one engine step.

        Raises:
            NotFound: the model is not the served one.
            Unavailable: draining, or the engine is lost.
            QueueFull: see Admission.
            InvalidRequest: the template refuses the conversation, or the constraint cannot be honoured.
            ContextLengthExceeded: prompt, or prompt and ``max_tokens``, do not fit; nothing is cut.
            InsufficientCredits, StoreError: see ``Bill.reserve``.
        """
        self.model.resolve(request.model)
        if self._draining:
            raise draining_error()
        now = self._clock()
        progress = Progress(request, started=now, phase_started=now)
        self._log.accepted(
            request.id, stream=request.stream, choices=request.choices, priority=request.priority
        )
        answer: Answer | ReplayedAnswer | None = None
        try:
            with self._admission.enter(request.sequences, request.priority), self._tracked(progress):
                async with self._billing.bill(request) as bill:
                    lookup = await self._caching.look_up(request)
                    answer = await self._replayed(request, lookup, bill)
                    if answer is None:
                        answer = await self._start(request, progress, bill)
                    self._caching.attend(lookup, answer)
                    try:
                        if isinstance(answer, ReplayedAnswer) or request.best_of is None:
                            yield answer
                        else:
                            yield BestAnswer(answer)
                    finally:
                        answer.close()
                        bill.leave(answer.made(), answer.failure)
                self._lines.ended(progress, answer)
        except StrettoError as error:
            self._lines.failed(progress, error)
            raise
        except BaseException:
            if answer is not None and answer.read:  # clients may hang up at the last word
                self._lines.ended(progress, answer)
            else:
                self._lines.cancelled(progress)
            raise

    async def _replayed(self, request: Request, lookup: Lookup | None, bill: Bill) -> ReplayedAnswer | None:
        """The answer that was found, to be given again and paid like the first time; None when a new one is to be made."""
        if lookup is None or lookup.answer is None:
            return None
        usage = await bill.charge(lookup.answer.usage)
        answer = ReplayedAnswer(request, lookup.answer, usage, lookup.match or "exact")
        bill.tell(answer.headers)
        recorder = self._remembering.recorder(request)
        if recorder is not None:
            answer.listeners.append(recorder)
        return answer

    async def count_tokens(self, request: Request) -> int:
        """Tokens of the prompt that ``answer`` would make of this request, whether or not they fit the context; without what memory adds.

        Raises:
            NotFound, InvalidRequest: as ``answer`` would.
        """
        self.model.resolve(request.model)
        return len(await self._prompt_ids(request))

    async def _prompt_ids(self, request: Request) -> Sequence[int]:
        return (await self._prompt(self._chat_model(), request)).ids

    def _chat_model(self) -> Chat:
        if self._chat is None:
            raise InvalidRequest(
                f"The model '{self.model.id}' has no chat template, so it cannot be given messages.",
                code="template_error",
                param="messages",
                remedy="Start the daemon with --chat-template FILE, or serve an instruction-tuned model.",
            )
        return self._chat

    async def _prompt(self, chat: Chat, request: Request) -> ChatPrompt:
        return await trio.to_thread.run_sync(chat.prompt, request, limiter=self._render_limiter)

    async def _start_raw(self, request: Request, progress: Progress, bill: Bill) -> Answer:
        """Start on prompts that no template renders."""
        raw = await trio.to_thread.run_sync(
            RawPrompts, self._tokenizer, request, limiter=self._render_limiter
        )
        if progress.cancel_requested:
            raise cancelled_error()
        limits = [self._fit(length, request) for length in raw.lengths]
        constraints = await self._constraints(request)
        max_tokens = await bill.reserve(sum(raw.lengths), limits)
        if progress.cancel_requested:
            raise cancelled_error()
        self._queue(progress, raw.lengths, max_tokens=max(max_tokens))
        generation = self._engine.submit(
            *(
                raw.sequence(index, max_tokens=max_tokens, constraint=constraints[index])
                for index in range(request.sequences)
            )
        )
        answer = Answer(
            request,
            generation,
            raw.assembler,
            progress,
            self._lines.phase,
            self._clock,
            cache_block_tokens=self._cache_block_tokens,
            echo=raw.echo,
            settle=bill.settle,
        )
        bill.tell(answer.headers)
        return answer

    def _queue(self, progress: Progress, prompts: Sequence[int], *, max_tokens: int) -> None:
        """Note that a request waits for the engine now."""
        progress.prompts = tuple(prompts)
        self._log.queued(progress.request.id, prompt_tokens=progress.prompt_tokens, max_tokens=max_tokens)
        progress.phase = "queued"
        progress.phase_started = self._clock()

    async def _start(self, request: Request, progress: Progress, bill: Bill) -> Answer:
        if request.prompts:
            return await self._start_raw(request, progress, bill)

        chat = self._chat_model()
        prompts: list[ChatPrompt] = []

        async def render(asked: Request) -> list[int]:
            prompts.append(await self._prompt(chat, asked))
            return list(prompts[-1].ids)

        remembered = await self._remembering.prompt(request, render)
        prompt = prompts[-1]  # which is the one that was chosen
        if progress.cancel_requested:
            raise cancelled_error()
        max_tokens = self._fit(len(prompt.ids), request)
        constraints = await self._chat_constraints(chat, request, prompt)
        (max_tokens,) = await bill.reserve(len(prompt.ids), [max_tokens])
        if progress.cancel_requested:
            raise cancelled_error()
        self._queue(progress, [len(prompt.ids)], max_tokens=max_tokens)
        generation = self._engine.submit(
            *(
                SequenceRequest(
                    id=sequence_id(request.id, index),
                    prompt_ids=prompt.ids,
                    sampling=request.sampling_of(index),
                    max_tokens=max_tokens,
                    end_token_ids=frozenset() if request.ignore_eos else chat.end_ids,
                    logprobs=request.logprobs,
                    extra_key=request.caller.tenant.encode(),
                    constraint=constraints[index],
                    priority=request.priority,
                    predicted_ids=prompt.predicted_ids,
                )
                for index in range(request.n)
            )
        )
        answer = Answer(
            request,
            generation,
            partial(chat.assembler, request, prompt),
            progress,
            self._lines.phase,
            self._clock,
            cache_block_tokens=self._cache_block_tokens,
            settle=bill.settle,
            remember=partial(chat.remember, prompt),
        )
        self._remembering.attend(request, answer, remembered)
        bill.tell(answer.headers)
        return answer

    async def _chat_constraints(
        self, chat: Chat, request: Request, prompt: ChatPrompt
    ) -> Sequence[TokenConstraint | None]:
        """One constraint for each answer, each at its beginning."""
        rules = chat.rules(request)
        if rules.free:
            return [None] * request.n
        return await trio.to_thread.run_sync(
            chat.constraints,
            rules,
            prompt,
            request.n,
            abandon_on_cancel=True,
            limiter=self._compile_limiter,
        )

    async def _constraints(self, request: Request) -> Sequence[TokenConstraint | None]:
        """One constraint for each answer, each at its beginning."""
        if request.constraint is None:
            return [None] * request.sequences
        # A compilation cannot be interrupted. It is bounded, and one that nobody waits for any more keeps its place in the limiter.
        grammar = await trio.to_thread.run_sync(
            self._grammars.compile, request.constraint, abandon_on_cancel=True, limiter=self._compile_limiter
        )
        return [grammar.follow() for _ in range(request.sequences)]

    def _fit(self, prompt_tokens: int, request: Request) -> int:
        return fitting_max_tokens(request, prompt_tokens, self.model.context_tokens, self._default_max_tokens)

    # What others may see and do ------------------------------------------------------------------------------------

    def requests(self) -> list[dict[str, object]]:
        """Live requests, oldest first; no content."""
        now = self._clock()
        return [
            {
                "id": progress.request.id,
                "phase": progress.phase,
                "priority": progress.request.priority,
                "stream": progress.request.stream,
                "choices": progress.request.choices,
                "prompt_tokens": progress.prompt_tokens,
                "prefilled_tokens": progress.prefilled_tokens,
                "cached_tokens": progress.cached_tokens,
                "completion_tokens": progress.completion_tokens,
                "max_tokens": progress.request.max_tokens,
                "age_s": round(now - progress.started, 3),
            }
            for progress in self._live.values()
        ]

    def cancel(self, request_id: str) -> bool:
        """End a live request from outside; False when there is none of that id."""
        progress = self._live.get(request_id)
        if progress is None:
            return False
        progress.cancel_requested = True  # for one that is still being rendered and has no sequence yet
        for index in range(progress.request.sequences):
            self._engine.cancel(sequence_id(request_id, index))
        return True

    def health(self) -> Health:
        """Alive, ready, and why not."""
        return judge_health(self._engine.progress(), self._draining, self._step_deadline_s)

    def status(self) -> dict[str, object]:
        """Everything ``GET /admin/status`` shows; plain JSON values."""
        health = self.health()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": health.state,
            "ready": health.ready,
            "uptime_s": round(self._clock() - self._started, 3),
            "model": {
                "id": self.model.id,
                "aliases": list(self.model.aliases),
                "family": self.model.family,
                "context_tokens": self.model.context_tokens,
                "backend": self.model.backend,
                "device": self.model.device,
                "dtype": self.model.dtype,
            },
            "admission": self._admission.stats(),
            "engine": asdict(self._engine.stats()),
            "grammars": self._grammars.stats(),
            **({} if self._chat is None else {"chat": self._chat.stats()}),
            "tokens": self.tokens.stats(),
            "requests": len(self._live),
            **{name: source() for name, source in self._reports.items()},
        }

    def report(self, name: str, source: Callable[[], object]) -> None:
        """Add an entry to ``status``: plain JSON values from ``source``, asked for each time."""
        self._reports[name] = source

    def drain(self) -> None:
        """Refuse new work from now on; what is inside goes on."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Return when no request is inside."""
        while self._live:
            await self._idle.wait()

    # -----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _tracked(self, progress: Progress) -> Iterator[None]:
        """Keep a request in the list of live ones."""
        if not self._live:
            self._idle = trio.Event()
        self._live[progress.request.id] = progress
        try:
            yield
        finally:
            del self._live[progress.request.id]
            if not self._live:
                self._idle.set()


def draining_error() -> Unavailable:
    """What new work is told while the daemon drains."""
    return Unavailable(
        "The daemon is shutting down and takes no new work.",
        code="draining",
        remedy="Try again when it is back.",
        retry_after_s=5.0,
    )
