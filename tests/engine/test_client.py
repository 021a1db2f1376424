"""The engine as the event loop sees it."""

from __future__ import annotations

import threading

import pytest
import trio

from stretto.backends.base import ModelSpec, ProgressReport
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.engine import EngineClient, EngineConfig, Generation, Outcome, Phase, Timing, Token, Update
from stretto.engine.client import merge
from stretto.errors import StartupError, StrettoError, Unavailable
from support.engine_echo import text_of
from support.engine_harness import PATIENCE_S, GatedBackend, request


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stretto-engine"]


async def read(generation: Generation) -> str:
    return text_of([token.id async for update in generation for token in update.tokens])


async def test_many_at_once() -> None:
    texts = [f"text {number} " * number for number in range(12)]
    answers: dict[int, str] = {}

    async def ask(number: int) -> None:
        generation = client.submit(request(str(number), texts[number]))
        answers[number] = await read(generation)
        assert generation.outcome is not None
        assert generation.outcome.reason == "stop"

    reports: list[tuple[str, float]] = []
    async with EngineClient(EchoBackend(), EngineConfig(max_batch=4)) as client:
        facts = await client.load(lambda phase, fraction: reports.append((phase, fraction)))
        assert facts.spec.family == "echo"
        assert reports[-1] == ("loading", 1.0)
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(ask, number)
        assert [answers[number] for number in range(12)] == texts
        assert client.stats().finished == 12
        assert client.progress().alive
    assert engine_threads() == []
    assert client.progress().state == "stopped"


async def test_a_slow_reader_gets_all_in_one() -> None:
    async with EngineClient(EchoBackend()) as client:
        await client.load()
        generation = client.submit(request("slow", "all of this"))
        while generation.outcome is None:
            await trio.lowlevel.checkpoint()
        update = await generation.__anext__()
        assert text_of(token.id for token in update.tokens) == "all of this"
        assert update.outcome is generation.outcome
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await generation.__anext__()


def test_merging() -> None:
    outcome = Outcome(Phase.FINISHED, "stop", 3, 2, 0, Timing(0, 0, 0))
    one = Update("a", Phase.PREFILLING, (), 2)
    two = Update("a", Phase.GENERATING, (Token(1),), 3)
    three = Update("a", Phase.FINISHED, (Token(2),), 3, outcome)
    assert merge([one]) is one
    assert merge([one, two, three]) == Update("a", Phase.FINISHED, (Token(1), Token(2)), 3, outcome)


async def test_leaving_the_block_cancels() -> None:
    backend = GatedBackend(EchoScript(repeat=0))
    async with EngineClient(backend, EngineConfig(max_batch=1)) as client:
        await client.load()
        backend.let_on(3)
        with client.submit(request("left")) as generation, client.submit(request("queued")) as queued:
            tokens: list[Token] = []
            async for update in generation:
                tokens.extend(update.tokens)
                if len(tokens) >= 3:
                    break
            assert generation.outcome is None
        backend.let_on(1)
        assert [update.phase async for update in generation] == [Phase.CANCELLED]
        assert [update.phase async for update in queued] == [Phase.CANCELLED]
        assert not client.progress().busy
        generation.cancel()
        with client.submit(request("next", "x", max_tokens=1)) as following:
            backend.let_on(1)
            assert await read(following) == "x"


async def test_a_failure_is_an_outcome() -> None:
    async with EngineClient(EchoBackend(EchoScript(fail_at_step=3))) as client:
        await client.load()
        generation = client.submit(request("a", "hello"))
        assert await read(generation) == "he"
        assert generation.outcome is not None
        assert generation.outcome.error is not None


async def test_what_is_live_at_the_end_fails() -> None:
    async with EngineClient(EchoBackend(EchoScript(repeat=0))) as client:
        await client.load()
        generation = client.submit(request("endless"))
        await generation.__anext__()
    assert engine_threads() == []
    async for _ in generation:
        pass
    assert generation.outcome is not None
    assert isinstance(generation.outcome.error, Unavailable)
    with pytest.raises(Unavailable):
        client.submit(request("late"))


async def test_a_stuck_step_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    backend = EchoBackend(EchoScript(stall_at_step=1))
    client = EngineClient(backend)
    await client.load()
    generation = client.submit(request("stuck"))
    assert await trio.to_thread.run_sync(backend.stalled.wait, PATIENCE_S)
    assert not await client.aclose(timeout_s=0)
    assert "left behind" in caplog.text
    assert [update.phase async for update in generation] == [Phase.FAILED]
    backend.release()
    assert await client.aclose()
    assert [update async for update in generation] == []


async def test_a_failed_load_raises_and_leaves_no_thread() -> None:
    client = EngineClient(EchoBackend(EchoScript(fail_at_load=1)))
    with pytest.raises(StartupError):
        await client.load()
    assert engine_threads() == []
    with pytest.raises(RuntimeError, match="loaded once"):
        await client.load()


class SlowLoad(EchoBackend):
    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.go_on = threading.Event()

    def load(self, report: ProgressReport) -> ModelSpec:
        self.started.set()
        while not self.go_on.wait(0.001):
            report("loading", 0.5)
        return super().load(report)


async def test_a_cancelled_load_stops() -> None:
    backend = SlowLoad()
    client = EngineClient(backend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.load)
        await trio.to_thread.run_sync(backend.started.wait)
        with pytest.raises(Unavailable):
            client.submit(request("early"))
        nursery.cancel_scope.cancel()
    assert engine_threads() == []
    assert not backend.go_on.is_set()


async def test_a_report_that_raises_stops_the_load() -> None:
    def report(phase: str, fraction: float) -> None:
        raise KeyError(phase)

    client = EngineClient(SlowLoad())
    with pytest.raises(KeyError, match="loading"):
        await client.load(report)
    assert engine_threads() == []


async def test_before_the_load() -> None:
    async with EngineClient(EchoBackend()) as client:
        assert client.stats().state == "new"
        assert not client.progress().alive
        with pytest.raises(Unavailable):
            client.submit(request("a"))


async def test_sequences_that_belong_together() -> None:
    async with EngineClient(EchoBackend(), EngineConfig(max_batch=2)) as client:
        await client.load()
        names = ["a", "b", "c"]
        generation = client.submit(*(request(name, name * 10) for name in names))
        tokens: dict[str, list[int]] = {name: [] for name in names}
        async for update in generation:
            tokens[update.id].extend(token.id for token in update.tokens)
        assert {name: text_of(ids) for name, ids in tokens.items()} == {name: name * 10 for name in names}
        assert set(generation.outcomes) == set(names)
        assert generation.outcome is generation.outcomes["a"]


async def test_one_of_several_can_be_cancelled() -> None:
    backend = GatedBackend()
    async with EngineClient(backend) as client:
        await client.load()
        generation = client.submit(request("a", "a" * 10), request("b", "b" * 10))
        generation.cancel("a")
        backend.let_on(1000)
        async for _ in generation:
            pass
        assert [generation.outcomes[name].phase for name in "ab"] == [Phase.CANCELLED, Phase.FINISHED]


async def test_several_are_queued_all_or_none() -> None:
    backend = GatedBackend()
    async with EngineClient(backend) as client:
        await client.load()
        with pytest.raises(StrettoError, match="outside the vocabulary"):
            client.submit(request("good", "g"), request("bad", prompt_ids=[999]))
        backend.let_on(1000)
        after = client.submit(request("after", "x"))
        assert await read(after) == "x"
        assert client.stats().cancelled == 1
        assert not client.progress().busy
