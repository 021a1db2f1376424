"""What every route that costs something says of it; and a key that cannot pay: refused in the dialect's own words, before anything runs."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio

from support.ledger_books import ALICE, BOB, usd
from support.serving_server import Reply
from support.tenant_house import House, open_house

QUESTION = "How do I close my account?"
MESSAGES = [{"role": "user", "content": QUESTION}]
PAID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/completions": {"prompt": QUESTION, "max_tokens": 100},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 100},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/embeddings": {"model": "bag", "input": QUESTION},
    "/v1/rerank": {"model": "words", "query": QUESTION, "documents": [QUESTION, "Rates have risen."]},
}
BESIDE = ("/v1/embeddings", "/v1/rerank")
"""Those that no served model answers: without streams, and nothing of them is cached."""
KEYS = {ALICE: {"balance": "0.00001"}, BOB: {"balance": "1"}}


def bearer(key: str) -> tuple[str, ...]:
    return (f"Authorization: Bearer {key}", "X-Stretto-Memory: off")


async def _ask(
    house: House, path: str, body: dict[str, Any], headers: tuple[str, ...], replies: list[Reply]
) -> None:
    replies.append((await house.call("POST", path, body, headers))[0])


async def require_untouched(house: House) -> None:
    view = await house.ledger.view(house.key(ALICE).name)
    assert (view.available, view.held, view.spent) == (usd("0.00001"), 0, 0)


@pytest.mark.parametrize("path", PAID)
async def test_402_in_the_words_of_each_dialect(tmp_path: Path, path: str) -> None:
    async with open_house(tmp_path, keys=KEYS) as house:
        for stream in (None,) if path in BESIDE else (False, True):
            more = {} if stream is None else {"stream": stream}
            body = {"model": "echo", **PAID[path], **more}
            reply, _ = await house.call("POST", path, body, bearer(ALICE))
            assert (reply.status, reply.headers["content-type"]) == (402, "application/json")
            assert reply.headers["x-should-retry"] == "false"
            document = json.loads(reply.body)
            error = document["error"]
            if path == "/v1/messages":
                assert (document["type"], error["type"]) == ("error", "billing_error")
                assert document["request_id"] == reply.headers["request-id"]
            else:
                assert (error["type"], error["param"]) == ("insufficient_quota", None)
            assert error["code"] == "insufficient_credits"
            assert "$0.00001 available" in error["message"]
            assert error["remedy"].startswith("Top up the key")
        assert house.engine.prompts == []
        await require_untouched(house)
        assert house.ledger.stats()["refused_total"] == (1 if path in BESIDE else 2)


async def test_every_reply_says_what_it_cost_and_what_is_left(tmp_path: Path) -> None:
    async with open_house(tmp_path, keys=KEYS) as house:
        for path, body in PAID.items():
            before = await house.ledger.view(house.key(BOB).name)
            headers = (*bearer(BOB), "X-Stretto-Cache: off")
            reply, _ = await house.call("POST", path, {"model": "echo", **body}, headers)
            after = await house.ledger.view(house.key(BOB).name)
            assert usd(json.loads(reply.body)["usage"]["cost"]) == after.spent - before.spent > 0
            assert usd(reply.headers["x-stretto-credits-remaining"]) == after.available


async def test_a_known_answer_costs_what_it_cost_and_is_not_given_to_who_cannot_pay(tmp_path: Path) -> None:
    bodies = {path: {"model": "echo", **body} for path, body in PAID.items() if path not in BESIDE}
    del bodies["/v1/completions"]  # raw prompts are not cached
    async with open_house(tmp_path, keys=KEYS) as house:
        costs = {}
        for times, (path, body) in itertools.product(("first", "again"), bodies.items()):
            before = (await house.ledger.view(house.key(BOB).name)).spent
            reply, _ = await house.call("POST", path, body, bearer(BOB))
            assert reply.status == 200
            costs[path, times] = (await house.ledger.view(house.key(BOB).name)).spent - before
            assert usd(json.loads(reply.body)["usage"]["cost"]) == costs[path, times]
        assert set(costs.values()) == {next(iter(costs.values()))}
        prompts = len(house.engine.prompts)
        assert prompts == 1  # all the others were replayed

        name = house.key(BOB).name
        left = (
            (await house.ledger.view(name)).available - next(iter(costs.values())) + 1
        )  # one short of a hit
        await house.ledger.give("adjust", name, -left, idempotency="a", note="")
        for path, body in bodies.items():
            reply, _ = await house.call("POST", path, body, bearer(BOB))
            assert (reply.status, b"insufficient_credits" in reply.body) == (402, True)
        await house.ledger.give("topup", name, 1, idempotency="b", note="")
        reply, _ = await house.call("POST", "/v1/responses", bodies["/v1/responses"], bearer(BOB))
        assert (reply.status, reply.headers["x-stretto-cache-result"]) == (200, "hit")
        assert Decimal(reply.headers["x-stretto-credits-remaining"]) == 0
        assert len(house.engine.prompts) == prompts


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_sent_again_is_paid_once(tmp_path: Path, stream: bool) -> None:
    async with open_house(tmp_path, keys=KEYS) as house:
        for path, body in PAID.items():
            if stream and path in BESIDE:
                continue
            before = await house.ledger.view(house.key(BOB).name)
            prompts = len(house.engine.prompts)
            headers = (*bearer(BOB), "X-Stretto-Cache: off", "Idempotency-Key: sent-again")
            sent = {"model": "echo", **body, **({"stream": True} if stream else {})}
            replies: list[Reply] = []
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(_ask, house, path, sent, headers, replies)
            await _ask(house, path, sent, headers, replies)
            assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
            replayed = sorted(reply.headers.get("idempotent-replayed", "") for reply in replies)
            assert replayed == ["", "true", "true"]
            assert len(house.engine.prompts) == prompts + (path not in BESIDE)
            after = await house.ledger.view(house.key(BOB).name)
            lines = await house.ledger.lines(house.key(BOB).name, before=2**62, limit=100, holds=False)
            paid = [line for line in lines if line.request == replies[0].headers["x-request-id"]]
            assert [-line.available - line.held for line in paid] == [after.spent - before.spent]
            assert (after.spent > before.spent, after.held) == (True, 0)
