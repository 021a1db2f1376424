"""The engine as the event loop (trio) sees it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import trio

from stretto.backends.base import Backend, ProgressReport
from stretto.engine.config import EngineConfig, EngineFacts, EngineProgress, EngineStats
from stretto.engine.engine import Engine
from stretto.engine.sequence import Outcome, Phase, SequenceRequest, Timing, Update
from stretto.engine.storing import PrefixStore
from stretto.errors import StrettoError, Unavailable

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
"""How long leaving ``async with EngineClient`` waits for a step that does not end."""


class Generation(AsyncIterator[Update]):
    """The updates of one sequence, or of several that belong together, ending after the last outcome.

    What arrives while the reader is busy elsewhere is merged into one update a sequence, so it is bounded by the prompt and ``max_tokens``. A
    failure is not raised: it is the outcome's ``error``. Whoever stops reading before the end cancels; ``with`` does that at the
    block's end.
    """

    def __init__(self, requests: Sequence[SequenceRequest], cancel: Callable[[str], None]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        """How sequences ended, by id, whatever was read so far."""
        self._prompt_tokens = {request.id: len(request.prompt_ids) for request in requests}
        self._cancel = cancel
        self._pending: dict[str, list[Update]] = {}
        self._arrived = trio.Event()

    @property
    def outcome(self) -> Outcome | None:
        """How the first sequence ended; None as long as it has not."""
        return self.outcomes.get(next(iter(self._prompt_tokens)))

    def cancel(self, sequence_id: str | None = None) -> None:
        """End one sequence, or all of them, within one engine step; the outcomes still come. Idempotent."""
        for name in self._prompt_tokens if sequence_id is None else (sequence_id,):
            if name not in self.outcomes:
                self._cancel(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        """The next update: what came for one sequence since its last one, as one.

        Only one task may read.
        """
        # Always give way once: whatever the engine has posted by then comes with this update.
        await trio.lowlevel.checkpoint()
        if not self._pending:
            if len(self.outcomes) == len(self._prompt_tokens):
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()
        return merge(self._pending.pop(next(iter(self._pending))))

    def take_ready(self) -> list[Update]:
        """What has come and was not read, as one update a sequence, without waiting."""
        ready = [merge(updates) for updates in self._pending.values()]
        self._pending.clear()
        return ready

    def push(self, update: Update) -> None:
        """Take an update from the engine; on the event loop."""
        self._pending.setdefault(update.id, []).append(update)
        if update.outcome is not None:
            self.outcomes[update.id] = update.outcome
        self._arrived.set()

    def abandon(self, error: StrettoError) -> None:
        """End here what has not ended, because the engine cannot any more; on the event loop."""
        for name, prompt_tokens in self._prompt_tokens.items():
            if name not in self.outcomes:
                outcome = Outcome(Phase.FAILED, None, prompt_tokens, 0, 0, Timing(0.0, 0.0, 0.0), error)
                self.push(Update(name, Phase.FAILED, outcome=outcome))


class EngineClient:
    """Owns an engine: ``load`` it, ``submit`` to it, and leave the ``async with`` block to stop it.

    Everything here is called on the event loop. ``Generation`` objects that are live when the engine stops end as failed.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        prefix_store: Callable[[EngineFacts], PrefixStore | None] | None = None,
    ) -> None:
        self._backend = backend
        self._prefix_store = prefix_store
        self._config = config or EngineConfig()
        self._clock = clock
        self._engine: Engine | None = None
        self._live: dict[str, Generation] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose(STOP_TIMEOUT_S)

    async def load(self, report: ProgressReport | None = None) -> EngineFacts:
        """Start the engine thread and load the model. A cancel stops the load, and waits until the thread has ended.

        ``report`` is called on the event loop; what it raises stops the load and is raised from here.

        Raises:
            StartupError: the model cannot be loaded, or the KV memory not be allocated.
            RuntimeError: called twice.
        """
        if self._engine is not None:
            raise RuntimeError("an engine is loaded once")
        post = trio.lowlevel.current_trio_token().run_sync_soon
        self._engine = Engine(
            self._backend,
            self._config,
            post=post,
            deliver=self._deliver,
            clock=self._clock,
            prefix_store=self._prefix_store,
        )
        waiter = _LoadWaiter(report)
        try:
            self._engine.start(waiter.loaded, waiter.failed, waiter.report)
            await waiter.ended.wait()
            if waiter.error is not None:
                raise waiter.error
        except BaseException:
            await self.aclose(STOP_TIMEOUT_S)
            raise
        assert waiter.facts is not None
        return waiter.facts

    def submit(self, *requests: SequenceRequest) -> Generation:
        """Queue sequences, all of them or none; one Generation reads them all.

        Raises:
            InvalidRequest, Unavailable, ValueError: see ``Engine.submit``.
        """
        if self._engine is None:
            raise Unavailable("The engine is not loaded.")
        generation = Generation(requests, self._engine.cancel)
        queued: list[str] = []
        try:
            for request in requests:
                self._engine.submit(request)
                queued.append(request.id)
        except BaseException:
            for name in queued:
                self._engine.cancel(name)
            raise
        self._live.update(dict.fromkeys(queued, generation))
        return generation

    def cancel(self, sequence_id: str) -> None:
        """End a sequence within one step, whoever reads it; its outcome still comes. An id that is not live is ignored."""
        if self._engine is not None:
            self._engine.cancel(sequence_id)

    def stats(self) -> EngineStats:
        """What there is to know; never waits for a step."""
        return EngineStats("new") if self._engine is None else self._engine.stats()

    def held_back(self) -> int:
        """Sequences that wait for want of room; see EngineStats."""
        return 0 if self._engine is None else self._engine.held_back()

    def progress(self) -> EngineProgress:
        """For readiness and the watchdog."""
        return (
            EngineProgress(False, 0.0, 0, False, "new") if self._engine is None else self._engine.progress()
        )

    async def aclose(self, timeout_s: float = math.inf) -> bool:
        """Stop the engine and wait for its thread, even when cancelled. Idempotent.

        Returns:
            Whether the thread has ended; False when a step outlasts ``timeout_s``, and then the process should not wait for it.
        """
        if self._engine is None:
            return True
        with trio.CancelScope(shield=True):
            stop = partial(self._engine.stop, None if math.isinf(timeout_s) else timeout_s)
            ended = await trio.to_thread.run_sync(stop)
        if not ended:
            _log.error("the engine thread is stuck and was left behind")
        # What the thread posted before it ended has arrived, since the news of its end came the same way; this is for the rest.
        for generation in dict.fromkeys(self._live.values()):
            generation.abandon(Unavailable("The engine has stopped."))
        self._live.clear()
        return ended

    def _deliver(self, updates: Sequence[Update]) -> None:
        for update in updates:
            generation = self._live.get(update.id)
            if generation is None:
                continue
            if update.outcome is not None:
                del self._live[update.id]
            generation.push(update)


class _LoadWaiter:
    """Takes on the event loop what a load has to say."""

    def __init__(self, report: ProgressReport | None) -> None:
        self.ended = trio.Event()
        self.facts: EngineFacts | None = None
        self.error: BaseException | None = None
        self._report = report

    def loaded(self, facts: EngineFacts) -> None:
        if self.error is None:
            self.facts = facts
        self.ended.set()

    def failed(self, error: StrettoError) -> None:
        self.error = self.error or error
        self.ended.set()

    def report(self, phase: str, fraction: float) -> None:
        if self._report is None or self.error is not None:
            return
        try:
            self._report(phase, fraction)
        except Exception as error:  # raised here it would end the event loop itself
            self.error = error
            self.ended.set()


def merge(updates: Sequence[Update]) -> Update:
    """Several updates of a sequence, in order, as one."""
    if len(updates) == 1:
        return updates[0]
    last = updates[-1]
    tokens = tuple(token for update in updates for token in update.tokens)
    prompt = tuple(token for update in updates for token in update.prompt)
    return replace(last, tokens=tokens, prompt=prompt)
