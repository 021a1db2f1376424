"""One engine step: end what was cancelled, start what fits, compute, draw, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stretto.backends.base import (
    Backend,
    BackendFailure,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
)
from stretto.engine.budget import window_need
from stretto.engine.config import EngineConfig, EngineFacts
from stretto.engine.live import LiveSequence
from stretto.engine.pacing import Pace
from stretto.engine.sampler import sample, score
from stretto.engine.scheduler import Part, Scheduler
from stretto.engine.sequence import Phase, Token, Update
from stretto.engine.speculation import Speculation
from stretto.engine.storing import PrefixStore, Storing
from stretto.errors import EngineError, StrettoError

_log = logging.getLogger(__name__)

MOST_SCORED_LOGITS = 2**24
"""A step in which a prompt's log-probabilities are wanted reads no more tokens than make so many logits (64 MiB)."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one part of a step gave.

    Attributes:
        tokens: its next tokens, if it was to give some and could: one, and more where its draft was right.
        prompt: tokens of the prompt with their log-probabilities, if those were asked for.
        sound: whether its logits were finite.
    """

    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] = ()
    sound: bool = True


class Stepper:
    """The scheduler, the pace and the counters of a loaded backend.

    ``step``, ``fail_all`` and ``take_updates`` belong to the engine thread. The scheduler and the counters change only while
    ``lock`` is held, and it is never held while the backend computes or tokens are drawn.
    """

    def __init__(
        self,
        backend: Backend,
        facts: EngineFacts,
        config: EngineConfig,
        *,
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
        store: PrefixStore | None = None,
    ) -> None:
        self._backend = backend
        self._facts = facts
        self._clock = clock
        self._lock = lock
        self._updates: list[Update] = []
        self._stall_target_s = config.stall_target_s
        self.storing = None if store is None else Storing(backend, store, clock=clock)
        self.scheduler = Scheduler(
            facts.kv,
            config.max_batch,
            windows=[
                None
                if group.window_tokens is None
                else window_need(group.window_tokens, config.block_tokens, config.prefill_chunk_tokens)
                for group in facts.spec.layer_groups
            ],
            prefix_cache=config.prefix_cache,
        )
        self.pace = Pace(stall_target_s=config.stall_target_s, chunk_tokens=config.prefill_chunk_tokens)
        self._speculation: Speculation | None = None
        if config.speculation:
            self._speculation = Speculation(
                most_rows=config.prefill_chunk_tokens, stall_target_s=config.stall_target_s
            )
        self.steps = 0
        self.failed_steps = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.ended = {Phase.FINISHED: 0, Phase.CANCELLED: 0, Phase.FAILED: 0}
        self.last_step_at = clock()

    def step(self) -> None:
        """Run one step. A failed one ends the sequences that were in it, and nothing of it is tried again.

        Raises:
            BackendLost: the backend must be loaded again; the sequences are still live.
            Exception: a bug, here or in the backend; the sequences are still live, in an unknown state.
        """
        with self._lock:
            now = self._clock()
            self._end_cancelled(now)
            self.scheduler.admit(now)
        self._restore(now)
        with self._lock:
            speculate = None if self._speculation is None else self._speculation.drafts
            parts = self.scheduler.plan(self.prefill_budget_tokens, speculate)
            chunks = [part.sequence.chunk(part.count, part.draft) for part in parts]
        if not parts:
            return
        started = self._clock()
        try:
            logits = self._backend.forward(chunks)
            drawn = self._draw(parts, chunks, logits)
        except Exception as failure:
            with self._lock:
                self.steps += 1
                self.failed_steps += 1
                self.last_step_at = self._clock()
                if isinstance(failure, BackendFailure) and not isinstance(failure, BackendLost):
                    self._fail(parts, failure)
                    return
            raise
        with self._lock:
            now = self._clock()
            self._apply(parts, drawn, now)
            self._end_cancelled(now)
            self._learn(parts, drawn, now - started)
            self.steps += 1
            self.last_step_at = now

    def _learn(self, parts: Sequence[Part], drawn: Sequence[Drawn], step_s: float) -> None:
        prefill_tokens = sum(part.count for part in parts if part.prefill)
        decoding = [part for part in parts if not part.prefill]
        rows = sum(part.count for part in decoding)
        if self._speculation is not None and not prefill_tokens:
            self._speculation.observe(rows=rows, step_s=step_s)
        self.pace.observe(
            step_s=step_s,
            prefill_tokens=prefill_tokens,
            decode_rows=len(decoding),
            decode_tokens=sum(
                len(given.tokens) for given, part in zip(drawn, parts, strict=True) if not part.prefill
            ),
            drafted=rows > len(decoding),
        )

    def _restore(self, now: float) -> None:
        """Read from the store what prompts begin with, for as long as a step may take."""
        if self.storing is None:
            return
        until = now + self._stall_target_s
        for sequence in self.scheduler.reading():
            while self._restore_some(self.storing, sequence, until):
                pass

    def _restore_some(self, storing: Storing, sequence: LiveSequence, until: float) -> bool:
        """Read what of a prompt's beginning is asked for at once; whether to ask again."""
        kv = self.scheduler.kv
        with self._lock:
            kv.extend(sequence)  # another may have been given just these blocks
            blocks = storing.wanted(kv, sequence)
        late = self._clock() >= until
        count = 0 if late or not blocks else storing.restore(blocks, until)
        with self._lock:
            kv.restored(sequence, count)
            # What the store did not have after all is computed.
            sequence.restoring = bool(blocks) and (late or 0 < count < len(blocks))
            storing.restored_tokens += count * self._facts.kv.block_tokens
            self.last_step_at = self._clock() if count else self.last_step_at
        return 0 < count == len(blocks)

    @property
    def accepted_tokens(self) -> int:
        """Tokens of drafts that became answers'."""
        return 0 if self._speculation is None else self._speculation.accepted_tokens

    @property
    def rejected_tokens(self) -> int:
        """Tokens of drafts that were computed for nothing."""
        return 0 if self._speculation is None else self._speculation.rejected_tokens

    @property
    def prefill_budget_tokens(self) -> int:
        """Prompt tokens that the next step may hold."""
        budget = self.pace.prefill_budget_tokens(decoding=self.scheduler.decoding)
        if self.scheduler.scoring:
            return min(budget, max(1, MOST_SCORED_LOGITS // self._facts.spec.vocab_size))
        return budget

    def fail_all(self, error: StrettoError) -> None:
        """End every live sequence, whatever state the scheduler is in; those that were cancelled end as cancelled."""
        with self._lock:
            now = self._clock()
            if self.storing is not None:
                self.storing.forget()
            for sequence in self.scheduler.clear():
                if not sequence.ended:
                    phase = Phase.CANCELLED if sequence.cancelled else Phase.FAILED
                    self._tell_end(sequence, phase, now, error=None if sequence.cancelled else error)

    def take_updates(self) -> list[Update]:
        """What happened since the last call."""
        updates, self._updates = self._updates, []
        return updates

    def _draw(self, parts: Sequence[Part], chunks: Sequence[Chunk], logits: Float32Array) -> list[Drawn]:
        """What each part gives."""
        ends = np.cumsum([chunk.logit_rows for chunk in chunks])
        expected = (int(ends[-1]), self._facts.spec.vocab_size)
        if logits.shape != expected:
            raise RuntimeError(f"the backend gave logits of shape {logits.shape} instead of {expected}")
        firsts = [int(end) - 1 - len(part.draft) for end, part in zip(ends, parts, strict=True)]
        tokens = _drawn_tokens(parts, firsts, logits)
        drawn = []
        for part, chunk, end, first, own in zip(parts, chunks, ends, firsts, tokens, strict=True):
            sound = bool(own) or not part.gives_token or bool(np.isfinite(logits[first]).all())
            prompt: tuple[Token, ...] | None = ()
            if part.prefill and part.sequence.request.prompt_logprobs is not None:
                prompt = _scored(chunk, part.sequence, logits[end - chunk.logit_rows : end])
            drawn.append(Drawn(tuple(own), prompt or (), sound and prompt is not None))
        return drawn

    def _apply(self, parts: Sequence[Part], drawn: Sequence[Drawn], now: float) -> None:
        for part, given in zip(parts, drawn, strict=True):
            sequence = part.sequence
            if part.prefill:
                sequence.prefilled += part.count
                self.prompt_tokens += part.count
            if given.sound:
                self.scheduler.kv.publish(sequence)
            else:
                self.scheduler.kv.distrust(sequence)
                if self.storing is not None:
                    self.storing.distrust()
            if self.storing is not None and not sequence.unread_tokens and not sequence.tokens:
                self.storing.note(sequence)  # a long prompt is worth it even if its answer never ends
            if sequence.cancelled:
                continue  # what was drawn for it is not wanted any more
            if given.tokens and given.sound:
                if self._speculation is not None:
                    self._speculation.count(sequence, len(part.draft), len(given.tokens) - 1)
                self._accept(sequence, given, now)
            elif part.gives_token or not given.sound:
                error = sequence.sampler.failure or EngineError(
                    "The model's output for this request is not finite: no token can be drawn from it."
                )
                self._end(sequence, Phase.FAILED, now, error=error)
            elif not sequence.unread_tokens:  # there was nothing but the prompt to read
                self._end(sequence, Phase.FINISHED, now, reason="length", given=given)
            else:
                self._updates.append(sequence.update(prompt=given.prompt))

    def _end_cancelled(self, now: float) -> None:
        for sequence in [sequence for sequence in self.scheduler.live() if sequence.cancelled]:
            self._end(sequence, Phase.CANCELLED, now)

    def _accept(self, sequence: LiveSequence, given: Drawn, now: float) -> None:
        sequence.tokens.extend(token.id for token in given.tokens)
        self.completion_tokens += len(given.tokens)
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if sequence.sampler.failure is not None:
            self._end(sequence, Phase.FAILED, now, given=given, error=sequence.sampler.failure)
        elif given.tokens[-1].id in sequence.request.end_token_ids:
            self._end(sequence, Phase.FINISHED, now, reason="stop", given=given)
        elif len(sequence.tokens) >= sequence.request.max_tokens:
            self._end(sequence, Phase.FINISHED, now, reason="length", given=given)
        else:
            if sequence.phase is Phase.PREFILLING:
                sequence.advance(Phase.GENERATING)
            self._updates.append(sequence.update(given.tokens, prompt=given.prompt))

    def _fail(self, parts: Sequence[Part], failure: BackendFailure) -> None:
        _log.error("a step of %d sequences failed: %s", len(parts), failure)
        if isinstance(failure, BackendOutOfMemory):
            error = EngineError(
                f"The engine ran out of memory in a step that this request was part of: {failure}.",
                code="out_of_memory",
                remedy="Try again; if it happens often, lower the batch size, the prefill chunk or the KV budget.",
            )
        else:
            error = EngineError(
                f"An engine step that this request was part of failed: {failure}.", remedy="Try again."
            )
        now = self._clock()
        for part in parts:
            cancelled = part.sequence.cancelled
            self._end(
                part.sequence,
                Phase.CANCELLED if cancelled else Phase.FAILED,
                now,
                error=None if cancelled else error,
            )

    def _end(
        self,
        sequence: LiveSequence,
        phase: Phase,
        now: float,
        *,
        reason: Literal["stop", "length"] | None = None,
        given: Drawn | None = None,
        error: StrettoError | None = None,
    ) -> None:
        self._tell_end(sequence, phase, now, reason=reason, given=given, error=error)
        if self.storing is not None:
            self.storing.note(sequence)
        self.scheduler.remove(sequence)

    def _tell_end(
        self,
        sequence: LiveSequence,
        phase: Phase,
        now: float,
        *,
        reason: Literal["stop", "length"] | None = None,
        given: Drawn | None = None,
        error: StrettoError | None = None,
    ) -> None:
        sequence.advance(phase)
        self.ended[phase] += 1
        outcome = sequence.outcome(now, reason=reason, error=error)
        given = given or Drawn()
        self._updates.append(sequence.update(given.tokens, outcome, given.prompt))


def _drawn_tokens(parts: Sequence[Part], firsts: Sequence[int], logits: Float32Array) -> list[list[Token]]:
    """The tokens that each part gives: from its first row on, as long as what is drawn is what the draft said.

    Every token is drawn from the row, and with the random number, that it would have been drawn with without a draft.
    """
    tokens: list[list[Token]] = [[] for _ in parts]
    going = [number for number, part in enumerate(parts) if part.gives_token]
    depth = 0
    while going:
        asked = [parts[number].sequence for number in going]
        wanted = [firsts[number] + depth for number in going]
        rows = logits if len(wanted) == len(logits) else logits[wanted]
        drawn = sample(rows, [s.sampler for s in asked], [s.request.logprobs for s in asked])
        further = []
        for number, token in zip(going, drawn, strict=True):
            if token is None:
                continue
            tokens[number].append(token)
            part = parts[number]
            if (
                depth < len(part.draft)
                and token.id == part.draft[depth]
                and token.id not in part.sequence.request.end_token_ids
            ):
                further.append(number)
        going, depth = further, depth + 1
    return tokens


def _scored(chunk: Chunk, sequence: LiveSequence, logits: Float32Array) -> tuple[Token, ...] | None:
    """The tokens whose log-probabilities a chunk of a prompt tells: those after each of its own, as far as the prompt goes."""
    first = chunk.start + 1
    expected = sequence.prompt[first : first + len(chunk.token_ids)]
    tokens = score(logits[: len(expected)], expected, sequence.request.prompt_logprobs or 0)
    if tokens is None or chunk.start:
        return tokens
    return (Token(int(sequence.prompt[0])), *tokens)
