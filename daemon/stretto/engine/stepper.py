"""One engine step: end what was cancelled, start what fits, compute, draw, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import numpy as np

from stretto.backends.base import Backend, BackendFailure, BackendLost, BackendOutOfMemory, Float32Array
from stretto.engine.config import EngineConfig, EngineFacts
from stretto.engine.live import LiveSequence
from stretto.engine.pacing import Pace
from stretto.engine.sampler import sample
from stretto.engine.scheduler import Part, Scheduler
from stretto.engine.sequence import Phase, Token, Update
from stretto.errors import EngineError, StrettoError

_log = logging.getLogger(__name__)


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
    ) -> None:
        self._backend = backend
        self._facts = facts
        self._clock = clock
        self._lock = lock
        self._updates: list[Update] = []
        self.scheduler = Scheduler(facts.kv, config.max_batch, prefix_cache=config.prefix_cache)
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
            parts = self.scheduler.plan(self.prefill_budget_tokens)
            chunks = [part.sequence.chunk(part.count) for part in parts]
        if not parts:
            return
        started = self._clock()
        try:
            logits = self._backend.forward(chunks)
            tokens = self._draw(parts, logits)
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
            self._apply(parts, logits, tokens, now)
            self._end_cancelled(now)
            self.pace.observe(
                step_s=now - started,
                prefill_tokens=sum(part.count for part in parts if part.prefill),
                decode_rows=sum(1 for part in parts if not part.prefill),
            )
            self.steps += 1
            self.last_step_at = now

    @property
    def prefill_budget_tokens(self) -> int:
        """Prompt tokens that the next step may hold."""
        return self.pace.prefill_budget_tokens(decoding=self.scheduler.decoding)

    def fail_all(self, error: StrettoError) -> None:
        """End every live sequence, whatever state the scheduler is in; those that were cancelled end as cancelled."""
        with self._lock:
            now = self._clock()
            for sequence in self.scheduler.clear():
                if not sequence.ended:
                    phase = Phase.CANCELLED if sequence.cancelled else Phase.FAILED
                    self._tell_end(sequence, phase, now, error=None if sequence.cancelled else error)

    def take_updates(self) -> list[Update]:
        """What happened since the last call."""
        updates, self._updates = self._updates, []
        return updates

    def _draw(self, parts: Sequence[Part], logits: Float32Array) -> list[Token | None]:
        """A token for each part that gives one, in order."""
        giving = [part.sequence for part in parts if part.gives_token]
        expected = (len(giving), self._facts.spec.vocab_size)
        if logits.shape != expected:
            raise RuntimeError(f"the backend gave logits of shape {logits.shape} instead of {expected}")
        return sample(logits, [s.sampler for s in giving], [s.request.logprobs for s in giving])

    def _apply(
        self, parts: Sequence[Part], logits: Float32Array, tokens: Sequence[Token | None], now: float
    ) -> None:
        drawn = zip(logits, tokens, strict=True)
        for part in parts:
            sequence = part.sequence
            if part.prefill:
                sequence.prefilled += part.count
                self.prompt_tokens += part.count
            row, token = next(drawn) if part.gives_token else (None, None)
            if row is not None and token is None and not np.isfinite(row).all():
                self.scheduler.kv.distrust(sequence)
            else:
                self.scheduler.kv.publish(sequence)
            if sequence.cancelled:
                continue  # what was drawn for it is not wanted any more
            if not part.gives_token:
                self._updates.append(sequence.update())
            elif token is None:
                error = sequence.sampler.failure or EngineError(
                    "The model's output for this request is not finite: no token can be drawn from it."
                )
                self._end(sequence, Phase.FAILED, now, error=error)
            else:
                self._accept(sequence, token, now)

    def _end_cancelled(self, now: float) -> None:
        for sequence in [sequence for sequence in self.scheduler.live() if sequence.cancelled]:
            self._end(sequence, Phase.CANCELLED, now)

    def _accept(self, sequence: LiveSequence, token: Token, now: float) -> None:
        sequence.tokens.append(token.id)
        self.completion_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if token.id in sequence.request.end_token_ids:
            self._end(sequence, Phase.FINISHED, now, reason="stop", tokens=(token,))
        elif len(sequence.tokens) >= sequence.request.max_tokens:
            self._end(sequence, Phase.FINISHED, now, reason="length", tokens=(token,))
        else:
            if sequence.phase is Phase.PREFILLING:
                sequence.advance(Phase.GENERATING)
            self._updates.append(sequence.update((token,)))

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
        tokens: tuple[Token, ...] = (),
        error: StrettoError | None = None,
    ) -> None:
        self._tell_end(sequence, phase, now, reason=reason, tokens=tokens, error=error)
        self.scheduler.remove(sequence)

    def _tell_end(
        self,
        sequence: LiveSequence,
        phase: Phase,
        now: float,
        *,
        reason: Literal["stop", "length"] | None = None,
        tokens: tuple[Token, ...] = (),
        error: StrettoError | None = None,
    ) -> None:
        sequence.advance(phase)
        self.ended[phase] += 1
        outcome = sequence.outcome(now, reason=reason, error=error)
        self._updates.append(sequence.update(tokens, outcome))
