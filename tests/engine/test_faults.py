"""The engine thread under faults: failed steps, a lost backend, bugs, stalls, an event loop that has ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from stretto.backends.base import Chunk, Float32Array, ModelSpec, ProgressReport
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.engine import EngineConfig, Phase
from stretto.errors import Unavailable
from support.engine_harness import PATIENCE_S, FakeClock, Running, request

NO_WAIT = EngineConfig(reload_delays_s=(0.0,))


def test_a_failing_step_leaves_the_engine_well() -> None:
    with Running(EchoBackend(EchoScript(fail_at_step=2))) as running:
        first = running.submit(request("first"))
        running.finish([first])
        assert first.outcome.error is not None
        second = running.submit(request("second", "well again"))
        running.finish([second])
        assert second.text == "well again"
        assert running.engine.stats().failed_steps == 1
        assert running.engine.progress().alive


def test_a_lost_backend_is_loaded_again() -> None:
    script = EchoScript(lost_at_step=2, fail_at_load=2)
    with Running(EchoBackend(script), NO_WAIT) as running:
        first, second = running.submit(request("first")), running.submit(request("second"))
        running.finish([first, second])
        for heard in (first, second):
            error = heard.outcome.error
            assert isinstance(error, Unavailable)
            assert error.code == "engine_unavailable"
            assert error.retry_after_s
        third = None
        while third is None:
            try:
                third = running.submit(request("third", "here again"))
            except Unavailable:
                continue
        running.finish([third])
        assert third.text == "here again"
        stats = running.engine.stats()
        assert (stats.reloads, stats.state) == (1, "ready")
        assert stats.backend["loads"] == 3


def test_while_lost_it_refuses_and_is_not_alive() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class SlowReload(EchoBackend):
        loads = 0

        def load(self, report: ProgressReport) -> ModelSpec:
            self.loads += 1
            if self.loads == 2:
                inside.set()
                assert go_on.wait(PATIENCE_S)
            return super().load(report)

    with Running(SlowReload(EchoScript(lost_at_step=1)), NO_WAIT) as running:
        first = running.submit(request("first"))
        assert inside.wait(PATIENCE_S)
        running.finish([first])
        progress = running.engine.progress()
        assert (progress.alive, progress.state, progress.busy) == (False, "lost", False)
        with pytest.raises(Unavailable, match="lost its device") as caught:
            running.engine.submit(request("second"))
        assert caught.value.retry_after_s
        go_on.set()


def test_stop_while_a_reload_waits() -> None:
    config = EngineConfig(reload_delays_s=(3600.0,))
    with Running(EchoBackend(EchoScript(lost_at_step=1)), config) as running:
        running.finish([running.submit(request("first"))])
        assert running.engine.progress().state == "lost"


def test_a_different_model_is_not_served_after_a_reload(caplog: pytest.LogCaptureFixture) -> None:
    inside, tried = threading.Event(), threading.Semaphore(0)

    class Changed(EchoBackend):
        def load(self, report: ProgressReport) -> ModelSpec:
            if inside.is_set():
                tried.release()
                self._script = EchoScript(context_tokens=64)
            inside.set()
            return super().load(report)

    with Running(Changed(EchoScript(lost_at_step=1)), NO_WAIT) as running:
        running.finish([running.submit(request("first"))])
        for _ in range(3):
            assert tried.acquire(timeout=PATIENCE_S)
        assert running.engine.progress().state == "lost"
    assert "not the one that was served" in caplog.text


def test_a_bug_fails_all_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with Running(EchoBackend(EchoScript(crash_at_step=2)), EngineConfig(max_batch=1)) as running:
        heard = [running.submit(request(name)) for name in ("runs", "waits")]
        running.finish(heard)
        for one in heard:
            assert one.outcome.error is not None
            assert one.outcome.error.code == "engine_error"
            assert "crash" not in one.outcome.error.message
        after = running.submit(request("after"))
        running.finish([after])
        assert after.text == "hello"
        assert running.engine.stats().kv_blocks_used == 0
    assert "RuntimeError: crash (scripted, step 2)" in caplog.text


def test_bugs_without_end_reload_the_backend() -> None:
    class Buggy(EchoBackend):
        loads = 0

        def load(self, report: ProgressReport) -> ModelSpec:
            self.loads += 1
            return super().load(report)

        def forward(self, batch: Sequence[Chunk]) -> Float32Array:
            if self.loads == 1:
                raise RuntimeError("again")
            return super().forward(batch)

    backend = Buggy()
    with Running(backend, NO_WAIT) as running:
        for number in range(3):
            running.finish([running.submit(request(str(number)))])
        answer = None
        while answer is None:
            try:
                answer = running.submit(request("after"))
            except Unavailable:
                continue
        running.finish([answer])
        assert answer.text == "hello"
        assert backend.loads == 2


def test_wrong_logits_are_a_bug_not_a_token() -> None:
    class Narrow(EchoBackend):
        def forward(self, batch: Sequence[Chunk]) -> Float32Array:
            return super().forward(batch)[:, :7]

    with Running(Narrow()) as running:
        heard = running.submit(request("a"))
        running.finish([heard])
        assert heard.outcome.phase is Phase.FAILED
        assert heard.ids == []


def test_progress_shows_a_stall() -> None:
    clock = FakeClock()
    backend = EchoBackend(EchoScript(stall_at_step=3), wait=clock.wait)
    with Running(backend, clock=clock) as running:
        assert running.engine.progress().last_step_age_s == 0
        clock.wait(500)
        heard = running.submit(request("a", "hello"))
        assert backend.stalled.wait(PATIENCE_S)
        clock.wait(40)
        progress = running.engine.progress()
        assert progress.busy
        assert progress.last_step_age_s == 40
        assert progress.steps == 2
        assert running.engine.stats().last_step_age_s == 40
        running.engine.cancel("a")
        assert not running.engine.stop(timeout_s=0)
        backend.release()
        running.finish([heard])
        assert heard.outcome.phase is Phase.CANCELLED


def test_a_stall_in_the_first_step_after_idling_counts_from_the_work() -> None:
    clock = FakeClock()
    backend = EchoBackend(EchoScript(stall_at_step=1), wait=clock.wait)
    with Running(backend, clock=clock) as running:
        clock.wait(500)
        running.submit(request("a"))
        assert backend.stalled.wait(PATIENCE_S)
        clock.wait(7)
        assert running.engine.progress().last_step_age_s == 7
        backend.release()


def test_an_event_loop_that_has_ended_is_no_reason_to_hang() -> None:
    running = Running()
    running.posts = None  # type: ignore[assignment]

    def gone(function: object) -> None:
        raise RuntimeError("the loop has ended")

    running.engine._post_function = gone
    running.engine.submit(request("a"))
    running.thread.join(PATIENCE_S)
    assert not running.thread.is_alive()
    assert running.engine.stop(PATIENCE_S)
