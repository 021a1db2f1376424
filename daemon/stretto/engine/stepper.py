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
from stretto.engine.storing import PrefixStore, Storing
from stretto.errors import EngineError, StrettoError

_log = logging.getLogger(__name__)

MOST_SCORED_LOGITS = 2**24
"""A step in which a prompt's log-probabilities are wanted reads no more tokens than make so many logits (64 MiB)."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one part of a step gave.

    Attributes:
        token: its next token, if it was to give one and could.
        prompt: tokens of the prompt with their log-probabilities, if those were asked for.
        sound: whether its logits were finite.
    """

    token: Token | None = None
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
            parts = self.scheduler.plan(self.prefill_budget_tokens)
            chunks = [part.sequence.chunk(part.count) for part in parts]
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
            self.pace.observe(
                step_s=now - started,
                prefill_tokens=sum(part.count for part in parts if part.prefill),
                decode_rows=sum(1 for part in parts if not part.prefill),
            )
            self.steps += 1
            self.last_step_at = now

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
        giving = [part.sequence for part in parts if part.gives_token]
        last = [end - 1 for end, part in zip(ends, parts, strict=True) if part.gives_token]
        rows = logits if len(last) == len(logits) else logits[last]
        tokens = iter(sample(rows, [s.sampler for s in giving], [s.request.logprobs for s in giving]))
        drawn = []
        for part, chunk, end in zip(parts, chunks, ends, strict=True):
            token = next(tokens) if part.gives_token else None
            sound = token is not None or not part.gives_token or bool(np.isfinite(logits[end - 1]).all())
            prompt: tuple[Token, ...] | None = ()
            if part.prefill and part.sequence.request.prompt_logprobs is not None:
                prompt = _scored(chunk, part.sequence, logits[end - chunk.logit_rows : end])
            drawn.append(Drawn(token, prompt or (), sound and prompt is not None))
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
            if given.token is not None and given.sound:
                self._accept(sequence, given, given.token, now)
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

    def _accept(self, sequence: LiveSequence, given: Drawn, token: Token, now: float) -> None:
        sequence.tokens.append(token.id)
        self.completion_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if token.id in sequence.request.end_token_ids:
            self._end(sequence, Phase.FINISHED, now, reason="stop", given=given)
        elif len(sequence.tokens) >= sequence.request.max_tokens:
            self._end(sequence, Phase.FINISHED, now, reason="length", given=given)
        else:
            if sequence.phase is Phase.PREFILLING:
                sequence.advance(Phase.GENERATING)
            self._updates.append(sequence.update((token,), prompt=given.prompt))

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
        tokens = () if given.token is None else (given.token,)
        self._updates.append(sequence.update(tokens, outcome, given.prompt))


def _scored(chunk: Chunk, sequence: LiveSequence, logits: Float32Array) -> tuple[Token, ...] | None:
    """The tokens whose log-probabilities a chunk of a prompt tells: those after each of its own, as far as the prompt goes."""
    first = chunk.start + 1
    expected = sequence.prompt[first : first + len(chunk.token_ids)]
    tokens = score(logits[: len(expected)], expected, sequence.request.prompt_logprobs or 0)
    if tokens is None or chunk.start:
        return tokens
    return (Token(int(sequence.prompt[0])), *tokens)
