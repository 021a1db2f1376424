"""The engine thread: it loads the model, computes for life, and is the only one to touch the backend."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from stretto.backends.base import Backend, BackendFailure, BackendLost, BackendOutOfMemory, ProgressReport
from stretto.engine.budget import check_fits, plan_kv
from stretto.engine.config import EngineConfig, EngineFacts, EngineProgress, EngineState, EngineStats
from stretto.engine.live import LiveSequence
from stretto.engine.sampler import SamplerState
from stretto.engine.sequence import Deliver, Post, SequenceRequest
from stretto.engine.stepper import Stepper
from stretto.engine.storing import PrefixStore
from stretto.errors import EngineError, InvalidRequest, StartupError, StrettoError, Unavailable

_log = logging.getLogger(__name__)

MAX_CRASHES = 3
"""After so many unexpected exceptions, one step after the other, the backend is loaded again."""

_RETRY_AFTER_S = 5.0
_BACKEND_STATS_PERIOD_S = 1.0
_SAVE_AGAIN_S = 0.02  # when the store's queue is full


class _Stopped(Exception):
    """Raised out of a load that is not wanted any more."""


class Engine:
    """One backend, one thread, many sequences.

    ``start`` runs the thread; it loads the backend, plans and allocates the KV memory, then steps as long as there is work and
    sleeps when there is none. ``submit``, ``cancel``, ``stats`` and ``progress`` may be called from any thread and never wait for
    a step. What happens is told by ``deliver``, called through ``post``, at most once a step.

    A step that fails ends the sequences in it. A backend that is lost ends all, and is loaded again with growing pauses; until
    then ``submit`` refuses.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        *,
        post: Post,
        deliver: Deliver,
        clock: Callable[[], float] = time.monotonic,
        prefix_store: Callable[[EngineFacts], PrefixStore | None] | None = None,
    ) -> None:
        self._backend = backend
        self._prefix_store = prefix_store
        self._config = config or EngineConfig()
        self._post_function = post
        self._deliver = deliver
        self._clock = clock
        self._wake = threading.Condition()  # also the lock of all that follows
        self._state = EngineState.NEW
        self._stopping = False
        self._stepper: Stepper | None = None
        self._facts: EngineFacts | None = None
        self._thread: threading.Thread | None = None
        self._busy_since = clock()
        self._reloads = 0
        self._backend_stats: Mapping[str, object] = {}
        self._backend_stats_at: float | None = None

    @property
    def facts(self) -> EngineFacts | None:
        """What was loaded; None before."""
        return self._facts

    def start(
        self,
        on_loaded: Callable[[EngineFacts], None],
        on_failed: Callable[[StrettoError], None],
        report: ProgressReport | None = None,
    ) -> None:
        """Start the thread. One of ``on_loaded`` and ``on_failed`` is posted, unless ``stop`` comes first.

        ``report`` is posted with each piece of progress of the load.

        Raises:
            RuntimeError: it was started before.
        """
        with self._wake:
            if self._state is not EngineState.NEW:
                raise RuntimeError("an engine starts once")
            self._state = EngineState.LOADING
        # A daemon thread, so that a step that hangs in a driver cannot keep the interpreter from ending; stop() joins it.
        self._thread = threading.Thread(
            target=self._main, args=(on_loaded, on_failed, report), name="stretto-engine", daemon=True
        )
        self._thread.start()

    def submit(self, request: SequenceRequest) -> None:
        """Queue a sequence.

        Raises:
            InvalidRequest: it can never run: see ``budget.check_fits``; or a token id is outside the vocabulary.
            Unavailable: the engine is not loaded, lost or stopped.
            ValueError: empty prompt, fewer than no answer tokens, or an id that is live already.
        """
        facts = self._facts
        if facts is None:
            raise self._unavailable()
        sequence = self._sequence(request, facts)
        with self._wake:
            if self._state is not EngineState.READY or self._stopping or self._stepper is None:
                raise self._unavailable()
            if not self._stepper.scheduler.busy:
                self._busy_since = self._clock()
            self._stepper.scheduler.enqueue(sequence)
            self._wake.notify_all()

    def cancel(self, sequence_id: str) -> None:
        """End that sequence, queued or running, within one step. An id that is not live is ignored."""
        with self._wake:
            sequence = self._stepper.scheduler.get(sequence_id) if self._stepper else None
            if sequence is not None:
                sequence.cancelled = True

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the load or all sequences, then the thread, and wait for it.

        Returns:
            Whether the thread has ended; False only if a step outlasts ``timeout_s``.
        """
        with self._wake:
            self._stopping = True
            if self._state is EngineState.NEW:
                self._state = EngineState.STOPPED
            self._wake.notify_all()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def progress(self) -> EngineProgress:
        """For readiness and the watchdog."""
        with self._wake:
            stepper = self._stepper
            busy = stepper is not None and stepper.scheduler.busy
            age_s = 0.0
            if stepper is not None and busy:
                age_s = max(0.0, self._clock() - max(stepper.last_step_at, self._busy_since))
            alive = self._state is EngineState.READY and self._thread is not None and self._thread.is_alive()
            return EngineProgress(busy, age_s, stepper.steps if stepper else 0, alive, self._state.value)

    def held_back(self) -> int:
        """``EngineStats.held_back`` alone, for who asks at every request."""
        with self._wake:
            return 0 if self._stepper is None else self._stepper.scheduler.held_back

    def stats(self) -> EngineStats:
        """What there is to know."""
        progress = self.progress()
        with self._wake:
            stepper, facts = self._stepper, self._facts
            if stepper is None or facts is None:
                return EngineStats(self._state.value, max_batch=self._config.max_batch)
            scheduler, now = stepper.scheduler, self._clock()
            used, total = scheduler.kv.blocks_used, facts.kv.blocks
            cache = scheduler.kv.counts
            sizes = [group.kv_bytes_per_token * facts.kv.block_tokens for group in facts.spec.layer_groups]
            finished, cancelled, failed = stepper.ended.values()
            return EngineStats(
                state=self._state.value,
                queued=scheduler.queued,
                held_back=scheduler.held_back,
                raised=scheduler.raised,
                running=scheduler.running,
                max_batch=self._config.max_batch,
                kv_blocks_used=sum(used),
                kv_blocks_cached=scheduler.kv.all_blocks_cached,
                kv_blocks_total=sum(total),
                kv_bytes_used=sum(blocks * size for blocks, size in zip(used, sizes, strict=True)),
                kv_bytes_total=facts.kv_bytes,
                steps=stepper.steps,
                failed_steps=stepper.failed_steps,
                reloads=self._reloads,
                prompt_tokens=stepper.prompt_tokens,
                completion_tokens=stepper.completion_tokens,
                cache_hits=cache.hits,
                cache_misses=cache.misses,
                cache_hit_tokens=cache.hit_tokens,
                cache_evictions=scheduler.kv.blocks_evicted,
                finished=finished,
                cancelled=cancelled,
                failed=failed,
                accepted_tokens=stepper.accepted_tokens,
                rejected_tokens=stepper.rejected_tokens,
                prefill_tokens_per_s=stepper.pace.prefill_tokens_per_s,
                decode_tokens_per_s=stepper.pace.decode_tokens_per_s,
                prefill_budget_tokens=stepper.prefill_budget_tokens,
                last_step_age_s=progress.last_step_age_s,
                sequences=tuple(sequence.stats(now) for sequence in scheduler.live()),
                prefix_store={} if stepper.storing is None else stepper.storing.stats(),
                backend=self._backend_stats,
            )

    def _sequence(self, request: SequenceRequest, facts: EngineFacts) -> LiveSequence:
        vocab_size = facts.spec.vocab_size
        prompt = np.asarray(request.prompt_ids, dtype=np.int32)
        if not prompt.size or request.max_tokens < 0:
            raise ValueError("a sequence has at least one prompt token, and generates no fewer than none")
        if not (prompt.min() >= 0 and prompt.max() < vocab_size):
            raise InvalidRequest(
                f"The prompt holds a token id outside the vocabulary of {vocab_size}.", param="prompt"
            )
        for token_id in request.sampling.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"logit_bias names token {token_id}; the vocabulary is 0 to {vocab_size - 1}.",
                    param="logit_bias",
                )
        check_fits(len(prompt), request.max_tokens, facts, self._config)
        sampler = SamplerState(request.sampling, prompt, vocab_size, request.constraint)
        return LiveSequence(request, prompt, sampler, self._clock())

    def _unavailable(self) -> Unavailable:
        if self._state is EngineState.LOST:
            return Unavailable(
                "The engine lost its device and is loading the model again.", retry_after_s=_RETRY_AFTER_S
            )
        if self._state is EngineState.LOADING:
            return Unavailable("The engine is loading the model.", retry_after_s=_RETRY_AFTER_S)
        return Unavailable("The engine is not running.")

    # What follows runs on the engine thread.

    def _main(
        self,
        on_loaded: Callable[[EngineFacts], None],
        on_failed: Callable[[StrettoError], None],
        report: ProgressReport | None,
    ) -> None:
        failure: StrettoError | None = None
        try:
            facts = self._load(report)
            store = None if self._prefix_store is None else self._prefix_store(facts)
            stepper = Stepper(
                self._backend, facts, self._config, clock=self._clock, lock=self._wake, store=store
            )
            with self._wake:
                self._facts = facts
                self._stepper = stepper
                self._state = EngineState.READY
            self._refresh_backend_stats()
            self._post(partial(on_loaded, facts))
            self._loop(stepper)
        except _Stopped:
            pass
        except StartupError as error:
            failure = error
        except Exception as error:
            _log.exception("the engine thread ends")
            failure = StartupError(f"The engine failed while starting: {type(error).__name__}: {error}.")
        finally:
            self._close(Unavailable("The engine has stopped."))
        if failure is not None and self._facts is None:
            self._post(partial(on_failed, failure))

    def _load(self, report: ProgressReport | None) -> EngineFacts:
        spec = self._backend.load(partial(self._report, report))
        facts = plan_kv(spec, self._backend.memory(), self._config)
        self._raise_if_stopping()
        try:
            self._backend.allocate(facts.kv)
        except BackendOutOfMemory as failure:
            raise StartupError(
                f"{facts.kv_bytes} bytes of KV memory could not be allocated: {failure}.",
                code="out_of_memory",
                remedy="Set a smaller KV budget or a shorter context, or free some memory.",
            ) from failure
        except BackendFailure as failure:
            raise StartupError(
                f"The KV memory could not be allocated: {failure}.", code="backend_unavailable"
            ) from failure
        self._raise_if_stopping()
        return facts

    def _report(self, report: ProgressReport | None, phase: str, fraction: float) -> None:
        self._raise_if_stopping()
        if report is not None:
            self._post(partial(report, phase, fraction))

    def _raise_if_stopping(self) -> None:
        if self._stopping:
            raise _Stopped

    def _loop(self, stepper: Stepper) -> None:
        crashes = 0
        while self._wait_for_work(stepper):
            try:
                stepper.step()
                if stepper.storing is not None:
                    stepper.storing.save_some()
                crashes = 0
            except BackendLost as lost:
                _log.error("the backend is lost: %s", lost)
                self._recover(stepper)
            except Exception:
                _log.exception("a step raised an unexpected exception")
                crashes += 1
                if crashes < MAX_CRASHES:
                    stepper.fail_all(
                        EngineError(
                            "The engine failed unexpectedly; its log has the reason.", remedy="Try again."
                        )
                    )
                else:
                    crashes = 0
                    self._recover(stepper)
            self._flush(stepper)
            if (
                self._backend_stats_at is None
                or self._clock() - self._backend_stats_at >= _BACKEND_STATS_PERIOD_S
            ):
                self._refresh_backend_stats()

    def _wait_for_work(self, stepper: Stepper) -> bool:
        """Sleep until there is some; False when stopping."""
        if not stepper.scheduler.busy:
            self._refresh_backend_stats()

        def called() -> bool:
            return self._stopping or stepper.scheduler.busy

        # Known text is saved while there is nothing else to do.
        while stepper.storing is not None and stepper.storing.pending:
            with self._wake:
                if called():
                    return not self._stopping
            if not stepper.storing.save_some():
                with self._wake:
                    self._wake.wait_for(called, timeout=_SAVE_AGAIN_S)
        with self._wake:
            self._wake.wait_for(called)
            return not self._stopping

    def _recover(self, stepper: Stepper) -> None:
        """Fail everything, then load the backend again until that works or the engine is stopped."""
        with self._wake:
            self._state = EngineState.LOST
        stepper.fail_all(
            Unavailable(
                "The engine lost its device while this request ran.",
                remedy="Try again.",
                retry_after_s=_RETRY_AFTER_S,
            )
        )
        self._flush(stepper)
        delays = itertools.chain(
            self._config.reload_delays_s, itertools.repeat(self._config.reload_delays_s[-1])
        )
        for attempt, delay_s in enumerate(delays, start=1):
            with self._wake:
                if self._wake.wait_for(lambda: self._stopping, timeout=delay_s):
                    return
            try:
                self._reload()
            except _Stopped:
                return
            except Exception as error:
                _log.warning(
                    "reloading the backend failed, attempt %d: %s: %s", attempt, type(error).__name__, error
                )
                continue
            with self._wake:
                self._reloads += 1
                self._state = EngineState.READY
            _log.info("the backend is loaded again, attempt %d", attempt)
            return

    def _reload(self) -> None:
        assert self._facts is not None
        self._backend.close()
        spec = self._backend.load(partial(self._report, None))
        if spec != self._facts.spec:
            raise BackendFailure("the reloaded model is not the one that was served")
        self._backend.allocate(self._facts.kv)

    def _flush(self, stepper: Stepper) -> None:
        updates = stepper.take_updates()
        if updates:
            self._post(partial(self._deliver, updates))

    def _post(self, function: Callable[[], None]) -> None:
        try:
            self._post_function(function)
        except Exception as error:
            # The event loop has ended: there is nobody to compute for.
            if not self._stopping:
                _log.warning("the engine stops, its event loop is gone: %s: %s", type(error).__name__, error)
            self._stopping = True

    def _refresh_backend_stats(self) -> None:
        self._backend_stats_at = self._clock()
        try:
            self._backend_stats = self._backend.stats()
        except Exception as error:
            _log.warning("the backend's stats failed: %s: %s", type(error).__name__, error)

    def _close(self, error: StrettoError) -> None:
        with self._wake:
            self._state = EngineState.STOPPED
            stepper = self._stepper
        if stepper is not None:
            storing = stepper.storing
            if storing is not None:
                storing.close()  # before the sequences go: their text is known until then
            stepper.fail_all(error)
            self._flush(stepper)
        try:
            self._backend.close()
        except Exception:
            _log.exception("closing the backend failed")
