"""Who pays for what, through the whole walk of a request over the echo backend, with a real ledger on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import ChatTemplate
from stretto.conversation.caller import Caller
from stretto.conversation.events import Done, Event, Finish, TextDelta, Usage
from stretto.conversation.messages import Message, RawPrompt, Request, TextPart
from stretto.engine import EngineClient, EngineConfig
from stretto.errors import (
    AuthenticationError,
    EngineError,
    InsufficientCredits,
    NotFound,
    RequestCancelled,
    StoreError,
)
from stretto.ledger import Key, KeyView, Ledger
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Answer, Billing, Pipeline, ServedModel
from support.ledger_books import ALICE, PRICES, PRICING, open_books, reservations, usd

MODEL = ServedModel("echo", (), 0, 4096, "echo", "echo", "cpu", "int32")


@dataclass
class House:
    """A pipeline whose requests are paid for."""

    pipeline: Pipeline
    ledger: Ledger
    engine: EngineClient
    backend: EchoBackend
    path: Path

    @property
    def key(self) -> Key:
        return self.ledger.authenticate(ALICE.encode())

    async def view(self) -> KeyView:
        return await self.ledger.view(self.key.name)

    def ask(self, text: str = "hello", request_id: str = "r", **fields: Any) -> Request:
        caller = Caller(tenant=self.key.name)
        return Request(request_id, "echo", (Message("user", (TextPart(text),)),), caller=caller, **fields)

    async def collect(self, request: Request) -> tuple[list[Event], Answer]:
        async with self.pipeline.answer(request) as answer:
            return [event async for event in answer], answer


@asynccontextmanager
async def house(
    directory: Path, script: EchoScript | None = None, *, max_batch: int = 4, **changes: Any
) -> AsyncIterator[House]:
    backend = EchoBackend(script or EchoScript())
    async with (
        open_books(directory, **changes) as (ledger, _),
        EngineClient(backend, EngineConfig(max_batch=max_batch)) as engine,
    ):
        await engine.load()
        pipeline = Pipeline(
            model=MODEL,
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(ECHO_CHAT_TEMPLATE),
            admission=Admission(max_batch, 8, waiting=engine.held_back),
            log=LifecycleLog(),
            billing=Billing(ledger),
        )
        try:
            yield House(pipeline, ledger, engine, backend, directory / "stretto.db")
        finally:
            backend.release()


async def stalled(backend: EchoBackend) -> None:
    """Return when the step that stalls has begun; what the steps before it gave has arrived then."""
    await trio.to_thread.run_sync(backend.stalled.wait)


def due(usage: Usage) -> int:
    """The price of a usage, added up here."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return (
        computed * PRICES.prompt
        + usage.cached_tokens * PRICES.cached
        + usage.completion_tokens * PRICES.completion
    )


def usage_of(events: list[Event]) -> Usage:
    done = events[-1]
    assert isinstance(done, Done)
    return done.usage


async def test_a_finished_answer_is_paid_before_its_end_is_told(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        spent: list[int] = []
        async with shop.pipeline.answer(shop.ask(max_tokens=20)) as answer:
            held = (await shop.view()).held
            events = []
            async for event in answer:
                events.append(event)
                if isinstance(event, Finish):
                    spent.append((await shop.view()).spent)
        usage = usage_of(events)
        assert held == usage.prompt_tokens * PRICES.prompt + 20 * PRICES.completion
        assert usage.cost_pico == due(usage) == spent[0]
        view = await shop.view()
        assert (view.available, view.held, view.spent) == (usd(1) - due(usage), 0, due(usage))
        assert reservations(shop.path) == {"r": ("settled", "finished", due(usage))}
        assert dict(answer.headers)[
            b"x-stretto-credits-remaining"
        ].decode() == f"{view.available / 10**12:.12f}".rstrip("0")


async def test_the_head_of_a_stream_says_what_is_left_beside_its_own_hold(tmp_path: Path) -> None:
    async with house(tmp_path, keys={ALICE: {"balance": "0.001"}}) as shop:
        async with shop.pipeline.answer(shop.ask(max_tokens=20)) as answer:
            view = await shop.view()
            assert dict(answer.headers) == {
                b"x-stretto-credits-remaining": f"{view.available / 10**12:.12f}".rstrip("0").encode()
            }


async def test_text_that_was_known_is_cheaper(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        first = usage_of((await shop.collect(shop.ask("tell me " * 20, "a")))[0])
        second = usage_of((await shop.collect(shop.ask("tell me " * 20, "b")))[0])
        assert (first.cached_tokens, second.cached_tokens > 0) == (0, True)
        assert second.cost_pico == due(second) < due(first)


async def test_every_one_of_several_answers_is_paid(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        usage = usage_of((await shop.collect(shop.ask("abc", n=3, max_tokens=10)))[0])
        assert usage.completion_tokens == 3 * 4
        assert usage.cost_pico == due(usage) == (await shop.view()).spent


async def test_several_prompts_and_the_best_of_several_answers_are_paid_in_full(tmp_path: Path) -> None:
    prompts = (RawPrompt(text="one two three"), RawPrompt(text="four"))
    async with house(tmp_path) as shop:
        request = Request(
            "r",
            "echo",
            (),
            prompts=prompts,
            n=1,
            best_of=2,
            max_tokens=5,
            caller=Caller(tenant=shop.key.name),
        )
        async with shop.pipeline.answer(request) as answer:
            held = (await shop.view()).held
            events = [event async for event in answer]
        usage = usage_of(events)
        assert held == usage.prompt_tokens * PRICES.prompt + 2 * 2 * 5 * PRICES.completion
        assert 0 < usage.completion_tokens <= 2 * 2 * 5
        assert usage.cost_pico == due(usage) == (await shop.view()).spent


async def test_who_leaves_pays_for_what_was_made(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(stall_at_step=6)) as shop:
        text = ""
        async with shop.pipeline.answer(shop.ask("abcdefghij", max_tokens=10)) as answer:
            async for event in answer:
                assert isinstance(event, TextDelta)
                text += event.text
                if len(text) == 5:
                    break
        usage = answer.usage()
        assert usage.completion_tokens == 5
        view = await shop.view()
        assert (view.spent, view.held) == (due(usage), 0)
        assert reservations(shop.path) == {"r": ("settled", "cancelled", due(usage))}


async def test_who_is_cancelled_while_the_loop_waits_pays_for_what_was_made(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(stall_at_step=3)) as shop:
        text = ""
        with trio.CancelScope() as scope:
            async with shop.pipeline.answer(shop.ask("abcdef")) as answer:
                async for event in answer:
                    assert isinstance(event, TextDelta)
                    text += event.text
                    if len(text) == 2:
                        scope.cancel()
        assert scope.cancelled_caught
        assert (await shop.view()).spent == due(answer.usage())
        assert answer.usage().completion_tokens == 2


async def test_tokens_that_were_made_and_not_read_are_paid_too(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(stall_at_step=6)) as shop:
        async with shop.pipeline.answer(shop.ask("abcdefghij")) as answer:
            await answer.__anext__()
            await stalled(shop.backend)
        assert answer.usage().completion_tokens == 5
        assert (await shop.view()).spent == due(answer.usage())


async def test_who_leaves_the_queue_pays_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(stall_at_step=2), max_batch=1) as shop:
        async with shop.pipeline.answer(shop.ask("first", "a")) as first:
            await first.__anext__()
            async with shop.pipeline.answer(shop.ask("second", "b")):
                assert (await shop.view()).held > 0
            assert reservations(shop.path)["b"] == ("released", "failed", None)
            assert (await shop.view()).spent == 0


async def test_a_prompt_that_was_read_in_part_is_paid_in_part(tmp_path: Path) -> None:
    config = EngineConfig(max_batch=1, prefill_chunk_tokens=16)
    backend = EchoBackend(EchoScript(stall_at_step=3))
    async with open_books(tmp_path) as (ledger, _), EngineClient(backend, config) as engine:
        await engine.load()
        pipeline = Pipeline(
            model=MODEL,
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(ECHO_CHAT_TEMPLATE),
            admission=Admission(1, 1, waiting=engine.held_back),
            log=LifecycleLog(),
            billing=Billing(ledger),
        )
        shop = House(pipeline, ledger, engine, backend, tmp_path / "stretto.db")
        async with pipeline.answer(shop.ask("x" * 200)) as answer:
            await stalled(backend)
        made = answer.made()
        assert (made.prompt_tokens, made.completion_tokens) == (32, 0)
        assert (await shop.view()).spent == 32 * PRICES.prompt
        backend.release()


async def test_an_administrator_who_cancels_lets_the_key_pay_for_what_was_made(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(repeat=0)) as shop:
        made: list[Usage] = []

        async def read_and_cancel() -> None:
            async with shop.pipeline.answer(shop.ask("abc")) as answer:
                try:
                    async for _ in answer:
                        shop.pipeline.cancel("r")
                finally:
                    made.append(answer.usage())

        with pytest.raises(RequestCancelled):
            await read_and_cancel()
        assert made[0].completion_tokens > 0
        assert (await shop.view()).spent == due(made[0])
        assert reservations(shop.path)["r"][1] == "cancelled"


async def test_an_answer_that_fails_is_free(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(fail_at_step=4)) as shop:
        with pytest.raises(EngineError):
            await shop.collect(shop.ask("abcdef"))
        view = await shop.view()
        assert (view.spent, view.held) == (0, 0)
        assert reservations(shop.path) == {"r": ("released", "failed", None)}


async def test_what_cannot_be_paid_never_reaches_the_engine(tmp_path: Path) -> None:
    async with house(tmp_path, keys={ALICE: {"balance": "0.00001"}}) as shop:
        with pytest.raises(InsufficientCredits) as caught:
            await shop.collect(shop.ask(max_tokens=20))
        assert "40 of answer" not in caught.value.message
        assert shop.engine.stats().steps == 0
        assert reservations(shop.path) == {}


async def test_an_answer_without_a_limit_gets_the_one_its_key_can_pay_and_is_told(tmp_path: Path) -> None:
    async with house(tmp_path, EchoScript(repeat=0), keys={ALICE: {"balance": "0.0008"}}) as shop:
        events, answer = await shop.collect(shop.ask("abc"))
        usage = usage_of(events)
        assert (
            usage.completion_tokens
            == (usd("0.0008") - usage.prompt_tokens * PRICES.prompt) // PRICES.completion
        )
        assert dict(answer.headers)[b"x-stretto-max-tokens"] == str(usage.completion_tokens).encode()
        assert events[-2] == Finish(0, "length")


async def test_who_has_no_tenant_is_free(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        request = Request("r", "echo", (Message("user", (TextPart("hello"),)),))
        events, answer = await shop.collect(request)
        assert usage_of(events).cost_pico is None
        assert answer.headers == []
        assert reservations(shop.path) == {}


async def test_a_tenant_that_the_ledger_does_not_know_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        request = Request(
            "r", "echo", (Message("user", (TextPart("hi"),)),), caller=Caller(tenant="key_other")
        )
        with pytest.raises(AuthenticationError):
            await shop.collect(request)


async def test_an_answer_that_cannot_be_booked_does_not_end_well_and_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as shop:
        write = shop.ledger._store.write

        async def refuse(*_: object, **__: object) -> None:
            raise StoreError("The disk is full.", code="store_full", status=507)

        events: list[Event] = []

        async def read() -> None:
            async with shop.pipeline.answer(shop.ask("abc")) as answer:
                monkeypatch.setattr(shop.ledger._store, "write", refuse)
                async for event in answer:
                    events.append(event)

        with pytest.raises(StoreError):
            await read()
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "abc"
        assert not any(isinstance(event, Finish | Done) for event in events)
        assert (await shop.view()).held > 0
        monkeypatch.setattr(shop.ledger._store, "write", write)
        usage = usage_of((await shop.collect(shop.ask("abc", "next")))[0])
        view = await shop.view()
        assert (view.held, view.spent) == (0, due(usage))
        assert reservations(shop.path)["r"] == ("released", "failed", None)


async def test_a_replayed_answer_costs_what_the_one_that_it_replays_cost(tmp_path: Path) -> None:
    async with house(tmp_path) as shop:
        first = usage_of((await shop.collect(shop.ask("abc")))[0])
        headers: list[tuple[bytes, bytes]] = [(b"x-other", b"1")]
        async with Billing(shop.ledger).bill(shop.ask("abc", "hit")) as bill:
            paid = await bill.charge(first)
            bill.tell(headers)
        assert (paid.cost_pico, paid.prompt_tokens) == (first.cost_pico, first.prompt_tokens)
        view = await shop.view()
        assert view.spent == 2 * due(first)
        assert reservations(shop.path)["hit"] == ("settled", "replayed", due(first))
        assert [name for name, _ in headers] == [b"x-other", b"x-stretto-credits-remaining"]
        async with Billing(None).bill(shop.ask()) as free:
            assert await free.charge(first) == first


async def test_another_model_has_a_price_of_its_own_or_is_not_offered(tmp_path: Path) -> None:
    models = {"echo": {"pricing": PRICING}, "minilm": {"pricing": {"prompt": "0.0000001", "completion": "0"}}}
    async with house(tmp_path, models=models) as shop:
        billing = Billing(shop.ledger)
        async with billing.other_bill(shop.key.name, "e", ["all-minilm", "minilm"]) as bill:
            await bill.reserve(1000, [0])
            assert (await bill.settle(Usage(300, 0))).cost_pico == 300 * 10**5
        with pytest.raises(NotFound, match="not offered"):
            async with billing.other_bill(shop.key.name, "f", ["other"]):
                raise AssertionError("not reached")
        async with billing.other_bill("", "g", ["other"]) as free:
            assert await free.reserve(5, [7]) == [7]
        assert (await shop.view()).spent == 300 * 10**5
