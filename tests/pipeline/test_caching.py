"""The answer cache in the walk of a request: what is found, what is kept, and what the reply's head says of it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.cache import AnswerCache, CacheConfig
from stretto.conversation import Caller, ChatTemplate, Done, Event, Finish, RawPrompt, Request, TextDelta
from stretto.conversation.messages import Reasoning
from stretto.engine import EngineClient, EngineConfig
from stretto.errors import EngineError, RequestCancelled
from stretto.memory import SessionMemory
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Billing, Pipeline, ServedModel
from stretto.store import Store
from stretto.tables import SCHEMAS
from support.cache_requests import BagEmbedder, FixedJudge, said
from support.ledger_books import ALICE, BOB, open_books

NUMBERS = itertools.count()
CLOSE = "How do I close my account?"
CLOSE_TOO = "How can I close my account?"


@dataclass
class World:
    pipeline: Pipeline
    engine: EngineClient
    cache: AnswerCache
    memory: SessionMemory | None

    async def ask(self, question: str, *before: Any, **fields: Any) -> tuple[list[Event], dict[str, str]]:
        """The answer's events, and what its head tells of the cache."""
        async with self.pipeline.answer(request(question, *before, **fields)) as answer:
            events = [event async for event in answer]
        told = {
            name.decode().removeprefix("x-stretto-cache-"): value.decode()
            for name, value in answer.headers
            if name.startswith(b"x-stretto-cache-")
        }
        return events, told

    @property
    def steps(self) -> int:
        return self.engine.stats().steps


def request(question: str, *before: Any, caller: Caller | None = None, **fields: Any) -> Request:
    messages = (*(said(role, text) for role, text in before), said("user", question))
    return Request(f"r{next(NUMBERS)}", "echo", messages, caller=caller or Caller(), **fields)


@asynccontextmanager
async def world(
    directory: Path,
    script: EchoScript | None = None,
    *,
    judge: Any = None,
    with_memory: bool = False,
    embedder: Any = None,
    template: str = ECHO_CHAT_TEMPLATE,
    **options: Any,
) -> AsyncIterator[World]:
    async with (
        await Store.open(directory / "stretto.db", SCHEMAS) as store,
        EngineClient(EchoBackend(script or EchoScript()), EngineConfig(max_batch=4)) as engine,
    ):
        facts = await engine.load()
        config = CacheConfig(judge_threshold=None if judge is None else 0.9)
        cache = AnswerCache(store, config, embedder=embedder or BagEmbedder(), judge=judge)
        await cache.load("f")
        memory = SessionMemory(store, top_k=4, max_entries=100) if with_memory else None
        if memory is not None:
            memory.on_change = cache.session_changed
        pipeline = Pipeline(
            model=ServedModel("echo", (), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"),
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(template),
            admission=Admission(4, 4, waiting=engine.held_back),
            log=LifecycleLog(),
            memory=memory,
            cache=cache,
            **options,
        )
        yield World(pipeline, engine, cache, memory)


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_hit_makes_no_step_and_costs_what_the_answer_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stretto.requests")
    async with world(tmp_path) as at:
        first, told = await at.ask(CLOSE)
        assert told == {"result": "miss"}
        steps = at.steps
        again, told = await at.ask(CLOSE)
        assert told == {"result": "hit", "match": "exact"}
        other, told = await at.ask(CLOSE_TOO, stream=True)
        assert (told["result"], told["match"]) == ("hit", "semantic")
        assert 0.8 <= float(told["similarity"]) < 1
        assert at.steps == steps
    for events in (again, other):
        assert events == [TextDelta(0, CLOSE), Finish(0, "stop"), first[-1]]
    events = [(record.message, record.__dict__["fields"]) for record in caplog.records]
    assert [fields["match"] for event, fields in events if event == "replayed"] == ["exact", "semantic"]
    assert CLOSE not in caplog.text


async def test_another_meaning_and_other_contexts_are_made_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        await at.ask(CLOSE)
        for question, before, fields in (
            ("How do I open my account?", (), {}),
            (CLOSE, (("system", "Be brief."),), {}),
            (CLOSE, (("user", "Hi"), ("assistant", "Hello")), {}),
            (CLOSE, (), {"caller": Caller(tenant="b")}),
            (CLOSE, (), {"stop": ("x",)}),
        ):
            events, told = await at.ask(question, *before, **fields)
            assert told == {"result": "miss"}
            assert text_of(events) == question


async def test_modes_and_what_is_not_cached(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        await at.ask(CLOSE)
        steps = at.steps
        assert (await at.ask(CLOSE, caller=Caller(cache="off")))[1] == {"result": "bypass"}
        assert (await at.ask(CLOSE, caller=Caller(cache="refresh")))[1] == {"result": "refresh"}
        assert (await at.ask(CLOSE, logprobs=0))[1] == {"result": "bypass"}
        assert at.steps > steps
        assert at.cache.stats()["entries"] == 1
        raw = Request("raw", "echo", (), prompts=(RawPrompt(text="a"),), max_tokens=1)
        async with at.pipeline.answer(raw) as answer:
            assert [event async for event in answer]
        assert (b"x-stretto-cache-result", b"bypass") in answer.headers


@pytest.mark.parametrize("reads", [False, True])
async def test_wishes_about_reasoning_count_where_the_model_hears_them(tmp_path: Path, reads: bool) -> None:
    template = ECHO_CHAT_TEMPLATE + ("{% if enable_thinking %}{% endif %}" if reads else "")
    async with world(tmp_path, template=template) as at:
        await at.ask(CLOSE)
        results = [
            (await at.ask(CLOSE, reasoning=reasoning))[1]["result"]
            for reasoning in (Reasoning(enabled=False), Reasoning(enabled=True), Reasoning(effort="high"))
        ]
        assert results == (["miss", "bypass", "bypass"] if reads else ["hit", "hit", "hit"])


async def test_an_answer_cut_short_is_not_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        assert (await at.ask(CLOSE, max_tokens=3))[1] == {"result": "miss"}
        assert at.cache.stats()["entries"] == 0


async def test_a_hit_is_no_longer_than_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path, default_max_tokens=100) as at:
        done = (await at.ask(CLOSE))[0][-1]
        assert isinstance(done, Done)
        tokens = done.usage.completion_tokens
        assert (await at.ask(CLOSE, max_tokens=tokens))[1]["result"] == "hit"
        assert (await at.ask(CLOSE, max_tokens=tokens - 1))[1]["result"] == "miss"


async def test_the_stop_string_is_kept_with_the_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        first, _ = await at.ask("say it END now", stop=("END",))
        again, told = await at.ask("say it END now", stop=("END",))
        assert told["result"] == "hit"
        assert text_of(again) == text_of(first) == "say it "
        assert again[-2] == Finish(0, "stop", "END")


async def test_nothing_is_kept_for_a_client_that_left(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        async with at.pipeline.answer(request(CLOSE)) as answer:
            await answer.__anext__()
        with trio.CancelScope() as scope:
            async with at.pipeline.answer(request(CLOSE)) as answer:
                async for event in answer:
                    if isinstance(event, Finish):
                        scope.cancel()
        assert scope.cancelled_caught
        assert at.cache.stats()["entries"] == 0


async def test_a_failed_answer_is_not_kept(tmp_path: Path) -> None:
    async with world(tmp_path, EchoScript(fail_at_step=3)) as at:
        with pytest.raises(EngineError):
            await at.ask(CLOSE)
        assert at.cache.stats()["entries"] == 0
        assert (await at.ask(CLOSE))[1] == {"result": "miss"}


async def test_a_hit_that_is_not_read_to_its_end_is_logged_as_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stretto.requests")
    async with world(tmp_path) as at:
        await at.ask(CLOSE)
        async with at.pipeline.answer(request(CLOSE)) as answer:
            assert isinstance(await answer.__anext__(), TextDelta)
    assert caplog.records[-1].message == "cancelled"


async def test_take_ready_gives_all_at_once_and_the_end_comes_after(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        await at.ask(CLOSE)
        async with at.pipeline.answer(request(CLOSE)) as answer:
            first = await answer.__anext__()
            ready = answer.take_ready()
            rest = [event async for event in answer]
        assert [type(event) for event in (first, *ready, *rest)] == [TextDelta, Finish, Done]
        assert ready


async def test_a_request_that_is_cancelled_while_it_is_judged_goes(tmp_path: Path) -> None:
    class Slow(FixedJudge):
        async def same(self, request_id: str, cached: str, asked: str) -> float:
            assert at.pipeline.cancel(request_id)
            return 0.0

    async with world(tmp_path, judge=Slow()) as at:
        await at.ask(CLOSE)
        with pytest.raises(RequestCancelled):
            await at.ask(CLOSE_TOO)


async def test_memory_keeps_sessions_apart_and_hits_are_remembered(tmp_path: Path) -> None:
    async with world(tmp_path, with_memory=True) as at:
        assert at.memory is not None
        one, two = Caller(session="one"), Caller(session="two")
        await at.ask(CLOSE, caller=one)
        assert (await at.ask(CLOSE, caller=one))[1]["result"] == "hit"
        assert (await at.ask(CLOSE_TOO, caller=one))[1]["match"] == "semantic"
        assert (await at.ask(CLOSE, caller=two))[1]["result"] == "miss"
        assert (await at.ask(CLOSE, caller=Caller(session="one", memory="off")))[1]["result"] == "miss"
        assert (await at.ask(CLOSE, caller=Caller(session="three", memory="off")))[1]["result"] == "hit"
        assert [entry.text for entry in await at.memory.page("", "one")] == [CLOSE, CLOSE_TOO]


@pytest.mark.parametrize("change", ["note", "forget", "forget_all"])
async def test_what_changes_a_session_forgets_its_answers(tmp_path: Path, change: str) -> None:
    async with world(tmp_path, with_memory=True) as at:
        assert at.memory is not None
        for session in ("one", "two"):
            await at.ask(CLOSE, caller=Caller(session=session))
        if change == "note":
            await at.memory.add_note("", "one", "The account is a bank account.")
        elif change == "forget":
            (entry,) = await at.memory.page("", "one")
            await at.memory.forget("", "one", entry.id)
        else:
            await at.memory.forget_all("", "one")
        assert (await at.ask(CLOSE, caller=Caller(session="one")))[1]["result"] == "miss"
        assert (await at.ask(CLOSE, caller=Caller(session="two")))[1]["result"] == "hit"


async def test_a_hit_is_paid_like_the_answer_it_repeats(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    books = tmp_path_factory.mktemp("books")
    async with open_books(books) as (ledger, _), world(tmp_path, billing=Billing(ledger)) as at:
        key = ledger.authenticate(ALICE.encode())
        caller = Caller(tenant=key.name)
        balances = [(await ledger.view(key.name)).available]
        for question in (CLOSE, CLOSE, CLOSE_TOO):
            events, told = await at.ask(question, caller=caller)
            balances.append((await ledger.view(key.name)).available)
            assert isinstance(events[-1], Done)
            assert events[-1].usage.cost_pico == balances[-2] - balances[-1] > 0
        assert told["match"] == "semantic"
        assert len({before - after for before, after in itertools.pairwise(balances)}) == 1
        # Somebody else's money buys an answer of one's own.
        bob = Caller(tenant=ledger.authenticate(BOB.encode()).name)
        assert (await at.ask(CLOSE, caller=bob))[1]["result"] == "miss"


async def test_without_a_cache_nothing_is_said_of_it(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        at.pipeline._caching._cache = None
        assert (await at.ask(CLOSE))[1] == {}
