"""The engine thread: load, work, faults, recovery, end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from stretto.backends.base import Chunk, Float32Array, KVPlan, ModelSpec, ProgressReport
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.conversation.messages import SamplingParams
from stretto.engine import Engine, EngineConfig, Phase
from stretto.errors import ContextLengthExceeded, InvalidRequest, StartupError, Unavailable
from support.engine_harness import PATIENCE_S, GatedBackend, Running, request


def test_loads_reports_and_answers() -> None:
    with Running() as running:
        assert running.error is None
        assert running.facts is not None
        assert running.facts.max_context_tokens == 4096
        assert running.reports[0] == ("loading", 0.0)
        assert running.reports[-1] == ("loading", 1.0)
        assert running.engine.progress().alive
        heard = [running.submit(request(str(number), "text " * number)) for number in range(20)]
        running.finish(heard)
        assert [one.text for one in heard] == ["text " * number for number in range(20)]
        stats = running.engine.stats()
        assert (stats.finished, stats.cancelled, stats.failed) == (20, 0, 0)
        assert stats.kv_blocks_used == stats.kv_bytes_used == stats.queued == stats.running == 0
        assert stats.completion_tokens == sum(len(one.ids) for one in heard)
        assert stats.prompt_tokens == sum(
            one.outcome.prompt_tokens - one.outcome.cached_tokens for one in heard
        )
        assert stats.cache_hit_tokens == sum(one.outcome.cached_tokens for one in heard) > 0
        assert (stats.cache_hits + stats.cache_misses, stats.cache_evictions) == (20, 0)
        assert stats.kv_blocks_cached > 0
        assert not running.engine.progress().busy
        thread = running.thread
    assert not thread.is_alive()
    assert running.engine.progress().state == "stopped"


def test_one_post_a_step() -> None:
    backend = GatedBackend()
    with Running(backend) as running:
        heard = [running.submit(request(name, "abc", max_tokens=10)) for name in "xyz"]
        backend.let_on(1000)
        running.finish(heard)
        assert len(running.deliveries) == len(backend.batches)
        assert len(running.deliveries[-1]) >= 1
        for delivery in running.deliveries:
            assert len({update.id for update in delivery}) == len(delivery)


def test_all_backend_calls_are_on_the_one_thread() -> None:
    seen: set[int] = set()

    class Watched(EchoBackend):
        def load(self, report: ProgressReport) -> ModelSpec:
            seen.add(threading.get_ident())
            return super().load(report)

        def allocate(self, plan: KVPlan) -> None:
            seen.add(threading.get_ident())
            super().allocate(plan)

        def forward(self, batch: Sequence[Chunk]) -> Float32Array:
            seen.add(threading.get_ident())
            return super().forward(batch)

        def stats(self) -> dict[str, object]:
            seen.add(threading.get_ident())
            return super().stats()

        def close(self) -> None:
            seen.add(threading.get_ident())
            super().close()

    with Running(Watched()) as running:
        running.finish([running.submit(request("a"))])
        running.engine.stats()
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_stats_of_live_sequences() -> None:
    backend = GatedBackend()
    with Running(backend, EngineConfig(max_batch=1)) as running:
        first = running.submit(request("first", "abc", max_tokens=9))
        backend.wait_until_in_step()
        second = running.submit(request("second", "abc"))
        stats = running.engine.stats()
        assert (stats.running, stats.queued, stats.max_batch) == (1, 1, 1)
        assert [(s.id, s.phase, s.max_tokens) for s in stats.sequences] == [
            ("first", "prefilling", 9),
            ("second", "queued", 1000),
        ]
        assert stats.sequences[0].kv_blocks == stats.kv_blocks_used > 0
        assert stats.kv_bytes_used == stats.kv_blocks_used * 16 * 8
        assert stats.kv_bytes_total == stats.kv_blocks_total * 16 * 8
        assert running.engine.progress().busy
        backend.let_on(1000)
        running.finish([first, second])
        assert running.engine.stats().backend["backend"] == "echo"


def test_cancel_during_a_step_ends_with_it() -> None:
    backend = GatedBackend()
    with Running(backend, EngineConfig(max_batch=2)) as running:
        one, two, queued = (running.submit(request(name, name * 30)) for name in ("one", "two", "queued"))
        backend.wait_until_in_step()
        backend.let_on()
        backend.wait_until_in_step()
        running.engine.cancel("one")
        running.engine.cancel("one")
        running.engine.cancel("queued")
        running.engine.cancel("never heard of")
        backend.let_on()
        running.finish([one, queued])
        assert one.outcome.phase is Phase.CANCELLED
        assert one.outcome.completion_tokens == 1
        assert queued.outcome.phase is Phase.CANCELLED
        backend.let_on(1000)
        running.finish([two])
        assert two.text == "two" * 30
        running.engine.cancel("one")
        assert running.engine.stats().kv_blocks_used == 0


def test_the_id_of_an_ended_sequence_is_free_again() -> None:
    with Running() as running:
        for _ in range(2):
            running.finish([running.submit(request("same"))])


@pytest.mark.parametrize(
    ("script", "config", "code", "named"),
    [
        (EchoScript(fail_at_load=1), EngineConfig(), "backend_unavailable", "load 1"),
        (
            EchoScript(oom_on_allocate=True),
            EngineConfig(),
            "out_of_memory",
            "524288 bytes of KV memory could not",
        ),
        (EchoScript(memory_bytes=1000), EngineConfig(), "out_of_memory", "60% of the 1000 bytes"),
        (
            EchoScript(),
            EngineConfig(max_context_tokens=999, kv_cache_bytes=999),
            "out_of_memory",
            "999 tokens needs 8064",
        ),
    ],
)
def test_a_start_that_fails(script: EchoScript, config: EngineConfig, code: str, named: str) -> None:
    running = Running(EchoBackend(script), config)
    assert isinstance(running.error, StartupError)
    assert running.error.code == code
    assert named in str(running.error)
    running.thread.join(PATIENCE_S)
    assert not running.thread.is_alive()
    assert not running.engine.progress().alive
    with pytest.raises(Unavailable):
        running.engine.submit(request("a"))


def test_a_bug_in_the_load_is_a_failed_start(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(EchoBackend):
        def load(self, report: ProgressReport) -> ModelSpec:
            raise KeyError("weights")

    running = Running(Broken())
    assert isinstance(running.error, StartupError)
    assert "KeyError" in running.error.message
    assert "Traceback" in caplog.text


def test_stop_during_the_load() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(EchoBackend):
        def load(self, report: ProgressReport) -> ModelSpec:
            inside.set()
            assert go_on.wait(PATIENCE_S)
            return super().load(report)

    running = Running(Slow(), load=False)
    running.start()
    assert inside.wait(PATIENCE_S)
    with pytest.raises(Unavailable, match="loading"):
        running.engine.submit(request("a"))
    assert running.engine.progress().state == "loading"
    assert not running.engine.stop(timeout_s=0)
    go_on.set()
    assert running.engine.stop(PATIENCE_S)
    running.drain()
    assert running.facts is None
    assert running.error is None
    assert running.reports == []


def test_stop_before_start_and_twice() -> None:
    engine = Engine(EchoBackend(), post=lambda function: None, deliver=lambda updates: None)
    assert engine.stop()
    assert engine.stop()
    with pytest.raises(RuntimeError, match="starts once"):
        engine.start(lambda facts: None, lambda error: None)


def test_stop_ends_what_runs_and_what_waits() -> None:
    backend = GatedBackend()
    running = Running(backend, EngineConfig(max_batch=1))
    heard = [running.submit(request(name, "long " * 50)) for name in ("runs", "waits")]
    backend.wait_until_in_step()
    assert not running.engine.stop(timeout_s=0)
    with pytest.raises(Unavailable):
        running.engine.submit(request("late"))
    backend.let_on()
    assert running.engine.stop(PATIENCE_S)
    running.drain()
    for one in heard:
        assert one.outcome.phase is Phase.FAILED
        assert one.outcome.error is not None
        assert one.outcome.error.code == "engine_unavailable"


def test_an_idle_engine_sleeps() -> None:
    with Running() as running:
        running.finish([running.submit(request("a"))])
        running.engine.stats()
        condition = running.engine._wake
        # The thread gets to its wait, and there it stays: it waits without a timeout, for a notification.
        while True:
            with condition:
                if condition._waiters:  # type: ignore[attr-defined]
                    break
        steps = running.engine.progress().steps
        assert running.posts.empty()
        with condition:
            condition.notify_all()
        running.finish([running.submit(request("b", "x"))])
        assert running.engine.progress().steps == steps + 2


def test_what_can_never_run_is_refused_at_once() -> None:
    config = EngineConfig(kv_cache_bytes=8 * 1024)
    with Running(EchoBackend(), config) as running:
        submit = running.engine.submit
        with pytest.raises(InvalidRequest, match=r"2000.* bytes") as caught:
            submit(request("a", prompt_ids=[1] * 1000, max_tokens=1000))
        assert caught.value.code == "kv_budget_exceeded"
        with pytest.raises(ContextLengthExceeded, match="make 5000"):
            submit(request("a", prompt_ids=[1] * 1000, max_tokens=4000))
        with pytest.raises(InvalidRequest, match="outside the vocabulary of 260"):
            submit(request("a", prompt_ids=[260]))
        with pytest.raises(InvalidRequest, match="logit_bias names token 300") as caught:
            submit(request("a", max_tokens=5, sampling=SamplingParams(logit_bias={300: 1.0})))
        assert caught.value.param == "logit_bias"
        with pytest.raises(ValueError, match="at least one prompt token"):
            submit(request("a", prompt_ids=[]))
        with pytest.raises(ValueError, match="no fewer than none"):
            submit(request("a", max_tokens=-1))
        assert not running.engine.progress().busy


def test_a_live_id_is_refused() -> None:
    backend = GatedBackend()
    with Running(backend) as running:
        running.submit(request("same"))
        with pytest.raises(ValueError, match="live already"):
            running.engine.submit(request("same"))
        backend.let_on(1000)
