"""What is written down of a request as it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stretto.conversation import Priority
from stretto.errors import StrettoError
from stretto.pipeline.answer import Answer, Progress
from stretto.pipeline.replay import ReplayedAnswer


class RequestLog(Protocol):
    """What the pipeline tells of a request as it goes; counts and times, never content."""

    def accepted(
        self, request_id: str, *, stream: bool, choices: int, priority: Priority = "normal"
    ) -> None: ...
    def queued(self, request_id: str, *, prompt_tokens: int, max_tokens: int) -> None: ...
    def prefilling(self, request_id: str, *, prompt_tokens: int, queued_s: float) -> None: ...
    def generating(
        self, request_id: str, *, prompt_tokens: int, cached_tokens: int, prefill_s: float
    ) -> None: ...
    def completed(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        finish_reason: str,
        queued_s: float,
        prefill_s: float,
        decode_s: float,
        cache_miss: str | None = None,
    ) -> None: ...
    def replayed(
        self, request_id: str, *, match: str, prompt_tokens: int, completion_tokens: int, after_s: float
    ) -> None: ...
    def cancelled(self, request_id: str, *, phase: str, completion_tokens: int, after_s: float) -> None: ...
    def failed(self, request_id: str, *, phase: str, code: str, after_s: float) -> None: ...


class RequestLines:
    """Writes the lines that follow from where a request is.

    Args:
        log: takes them.
        clock: monotonic seconds; that of ``Progress``.
    """

    def __init__(self, log: RequestLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock

    def phase(self, progress: Progress) -> None:
        """A request has come to another phase."""
        now = self._clock()
        since_s, progress.phase_started = now - progress.phase_started, now
        if progress.phase == "prefilling":
            self._log.prefilling(progress.request.id, prompt_tokens=progress.prompt_tokens, queued_s=since_s)
        elif progress.phase == "generating":
            self._log.generating(
                progress.request.id,
                prompt_tokens=progress.prompt_tokens,
                cached_tokens=progress.cached_tokens,
                prefill_s=since_s,
            )

    def failed(self, progress: Progress, error: StrettoError) -> None:
        """A request was refused, or its answer broke off."""
        self._log.failed(
            progress.request.id,
            phase=progress.phase,
            code=error.code,
            after_s=self._clock() - progress.started,
        )

    def cancelled(self, progress: Progress) -> None:
        """Nobody wants the answer any more."""
        self._log.cancelled(
            progress.request.id,
            phase=progress.phase,
            completion_tokens=progress.completion_tokens,
            after_s=self._clock() - progress.started,
        )

    def ended(self, progress: Progress, answer: Answer | ReplayedAnswer) -> None:
        """An answer goes no further."""
        if answer.failure is not None:  # a stream tells it to its client and ends like any other
            self.failed(progress, answer.failure)
        elif not answer.complete:
            self.cancelled(progress)
        elif isinstance(answer, ReplayedAnswer):
            self._replayed(progress, answer)
        else:
            self._completed(progress, answer)

    def _replayed(self, progress: Progress, answer: ReplayedAnswer) -> None:
        usage = answer.usage()
        self._log.replayed(
            progress.request.id,
            match=answer.match,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            after_s=self._clock() - progress.started,
        )

    def _completed(self, progress: Progress, answer: Answer) -> None:
        usage = answer.usage()
        timings = [outcome.timing for outcome in answer.outcomes()]
        queued_s = max((timing.queued_s for timing in timings), default=0.0)
        prefill_s = max((timing.prefill_s for timing in timings), default=progress.first_token_s or 0.0)
        total_s = self._clock() - progress.started
        self._log.completed(
            progress.request.id,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish_reason="+".join(sorted(set(progress.finish_reasons))),
            queued_s=queued_s,
            prefill_s=prefill_s,
            decode_s=max(
                (timing.decode_s for timing in timings), default=max(0.0, total_s - queued_s - prefill_s)
            ),
            cache_miss=None if answer.cache_miss is None else str(answer.cache_miss),
        )
