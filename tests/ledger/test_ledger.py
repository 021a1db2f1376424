"""The ledger on a store: who gets in, what is paid, and that many at once never spend what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import AuthenticationError, InsufficientCredits, InvalidRequest, NotFound, StartupError
from stretto.ledger import Key, Ledger, Used
from stretto.ledger.reservations import LEAST_ANSWER_TOKENS, Ask, granted_limits
from support.ledger_books import (
    ADMIN_TOKEN,
    ALICE,
    BOB,
    PRICES,
    PRICING,
    ask,
    open_books,
    reservations,
    usd,
)

HOLD = usd("0.0002")
"""What the usual request may cost: 100 tokens of prompt and 50 of answer."""


def key_of(ledger: Ledger, secret: str = ALICE) -> Key:
    return ledger.authenticate(secret.encode())


async def available(ledger: Ledger, secret: str = ALICE) -> int:
    return (await ledger.view(key_of(ledger, secret).name)).available


async def test_keys_of_the_file_get_in_and_no_others(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        assert key_of(ledger).label == "Alice"
        assert key_of(ledger).name != key_of(ledger, BOB).name
        for wrong in (
            b"",
            ALICE[:-1].encode(),
            ALICE.encode() + b" ",
            ADMIN_TOKEN.encode(),
            key_of(ledger).name.encode(),
            key_of(ledger).digest,
        ):
            with pytest.raises(AuthenticationError) as caught:
                ledger.authenticate(wrong)
            assert caught.value.status == 401
        assert ledger.is_admin(ADMIN_TOKEN.encode())
        assert not ledger.is_admin(ALICE.encode())


async def test_no_key_is_in_the_store(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, store):
        made = await ledger.create(label="x", plan=None, balance=0, idempotency=None)
        assert made.secret is not None
        await store.backup(tmp_path / "copy.db")
    data = (tmp_path / "copy.db").read_bytes() + (tmp_path / "stretto.db").read_bytes()
    assert b"Alice" in data
    for secret in (ALICE, BOB, ADMIN_TOKEN, made.secret):
        assert secret.encode() not in data
        assert secret.encode()[:20] not in data


async def test_reserve_settle_and_release_move_money_once(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        key = key_of(ledger)
        first, second = (
            await ledger.reserve(key, ask(request="a")),
            await ledger.reserve(key, ask(request="b")),
        )
        assert (first.amount, second.available) == (HOLD, usd(1) - 2 * HOLD)
        view = await ledger.view(key.name)
        assert (view.available, view.held, view.spent) == (usd(1) - 2 * HOLD, 2 * HOLD, 0)
        cost = usd("0.000070") + usd("0.000015") + usd("0.000020")  # 70 computed, 30 cached, 10 of answer
        assert ledger.stats()["reservations_open"] == 2
        for _ in range(3):
            closing = await ledger.settle(first, Used(100, 30, 10), "finished")
            assert (closing.cost, closing.available) == (cost, usd(1) - cost - HOLD)
        for _ in range(3):
            assert (await ledger.release(second)).available == usd(1) - cost
        assert (await ledger.settle(second, Used(100, 0, 50), "finished")).cost == 0
        assert (await ledger.release(first)).cost == cost
        view = await ledger.view(key.name)
        assert (view.available, view.held, view.spent, view.given) == (usd(1) - cost, 0, cost, usd(1))
        assert ledger.stats()["reservations_open"] == 0
    assert reservations(tmp_path / "stretto.db") == {
        "a": ("settled", "finished", cost),
        "b": ("released", "failed", None),
    }


async def test_never_more_is_paid_than_was_held(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        hold = await ledger.reserve(key_of(ledger), ask())
        assert (await ledger.settle(hold, Used(100, 0, 5000), "finished")).cost == HOLD
        assert await available(ledger) == usd(1) - HOLD


async def test_fifty_at_once_on_credit_for_three(tmp_path: Path) -> None:
    balance = {
        ALICE: {"balance": "0.0007"},
        BOB: {"balance": "0.0002"},
    }  # three and a half requests, and exactly one
    async with open_books(tmp_path, keys=balance) as (ledger, _):
        outcomes: dict[str, list[object]] = {ALICE: [], BOB: []}

        async def try_it(secret: str, number: int) -> None:
            try:
                outcomes[secret].append(
                    await ledger.reserve(key_of(ledger, secret), ask(request=f"{secret} {number}"))
                )
            except InsufficientCredits as error:
                outcomes[secret].append(error.code)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(try_it, ALICE, number)
                nursery.start_soon(try_it, BOB, number)
        assert [
            sum(outcome != "insufficient_credits" for outcome in found) for found in outcomes.values()
        ] == [3, 1]
        assert await available(ledger) == usd("0.0001")
        assert await available(ledger, BOB) == 0
        assert ledger.stats()["refused_total"] == 47 + 49
        holds = [hold for hold in outcomes[ALICE] if not isinstance(hold, str)]
        async with trio.open_nursery() as nursery:
            for hold in holds * 5:
                nursery.start_soon(ledger.settle, hold, Used(100, 0, 50), "finished")
        assert await available(ledger) == usd("0.0001")
        assert (await ledger.view(key_of(ledger).name)).spent == 3 * HOLD


async def test_a_refusal_says_what_is_needed_what_is_there_and_what_would_do(tmp_path: Path) -> None:
    async with open_books(tmp_path, keys={ALICE: {"balance": "0.0003"}}) as (ledger, _):
        await ledger.reserve(key_of(ledger), ask())
        with pytest.raises(InsufficientCredits) as caught:
            await ledger.reserve(key_of(ledger), ask(prompt_tokens=80, max_tokens=50))
        assert caught.value.status == 402
        assert caught.value.message == (
            "This request may cost $0.00018 (80 tokens of prompt and 50 of answer), and the key has $0.0001 available beside $0.0002 that "
            "its running requests hold."
        )
        assert (
            caught.value.remedy
            == "Top up the key, or lower max_tokens to 10, or wait for its running requests to end."
        )
        with pytest.raises(InsufficientCredits) as caught:
            await ledger.reserve(key_of(ledger), ask(prompt_tokens=101))
        assert caught.value.remedy == "Top up the key, or wait for its running requests to end."


@pytest.mark.parametrize(
    ("balance", "answers", "granted"),
    [
        ("1", 1, 4000),
        ("0.0019", 1, 900),
        ("0.000612", 1, LEAST_ANSWER_TOKENS),
        ("0.00061", 1, None),
        ("0.0019", 3, 300),
    ],
)
async def test_a_request_without_a_limit_runs_on_what_its_key_can_pay(
    tmp_path: Path, balance: str, answers: int, granted: int | None
) -> None:
    wish = ask(max_tokens=4000, named=False, answers=answers)
    async with open_books(tmp_path, keys={ALICE: {"balance": balance}}) as (ledger, _):
        if granted is None:
            with pytest.raises(InsufficientCredits):
                await ledger.reserve(key_of(ledger), wish)
        else:
            assert (await ledger.reserve(key_of(ledger), wish)).limits == (granted,)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6), st.integers(0, 10**10), st.integers(1, 3))
def test_limits_are_lowered_evenly_as_far_as_they_must_be_and_no_further(
    limits: list[int], available: int, answers: int
) -> None:
    wish = Ask("r", "m", PRICES, 100, tuple(limits), answers, named=False)
    granted = granted_limits(wish, available)

    def price(tokens: Sequence[int]) -> int:
        return 100 * PRICES.prompt + answers * sum(tokens) * PRICES.completion

    if granted is None:
        assert price([min(limit, LEAST_ANSWER_TOKENS) for limit in limits]) > available
        return
    assert price(granted) <= available
    if list(granted) != limits:
        cap = max(granted)
        assert cap >= LEAST_ANSWER_TOKENS
        assert list(granted) == [min(limit, cap) for limit in limits]
        assert price([min(limit, cap + 1) for limit in limits]) > available


async def test_an_answer_that_is_there_is_paid_at_once(tmp_path: Path) -> None:
    used = Used(100, 40, 50)
    cost = usd("0.00006") + usd("0.00002") + usd("0.0001")
    async with open_books(tmp_path, keys={ALICE: {"balance": "0.0003"}}) as (ledger, _):
        closing = await ledger.charge(key_of(ledger), ledger.offer, "again", used)
        assert (closing.cost, closing.available) == (cost, usd("0.0003") - cost)
        with pytest.raises(InsufficientCredits):
            await ledger.charge(key_of(ledger), ledger.offer, "more", used)
        assert await available(ledger) == usd("0.0003") - cost
    assert reservations(tmp_path / "stretto.db") == {"again": ("settled", "replayed", cost)}


async def test_plans_have_prices_of_their_own(tmp_path: Path) -> None:
    models = {"echo": {"pricing": PRICING, "plans": {"partner": {"prompt": "0.0000001", "completion": "0"}}}}
    async with open_books(tmp_path, models=models, keys={ALICE: {"plan": "partner"}}) as (ledger, _):
        assert ledger.offer.prices_of(key_of(ledger).plan).prompt == 10**5
        with pytest.raises(InvalidRequest) as caught:
            await ledger.create(label="", plan="gold", balance=0, idempotency=None)
        assert caught.value.code == "plan_unknown"
        made = await ledger.create(label="", plan="partner", balance=0, idempotency=None)
        assert made.view.plan == "partner"
    with pytest.raises(StartupError) as lost:
        async with open_books(tmp_path, keys={}):
            pass
    assert lost.value.code == "plan_unknown"


async def test_a_key_is_made_once_and_shown_once(tmp_path: Path) -> None:
    async with open_books(tmp_path, keys={}) as (ledger, _):
        made = await ledger.create(label="Carol", plan=None, balance=usd("2.5"), idempotency="one")
        assert made.secret is not None
        assert ledger.authenticate(made.secret.encode()).name == made.view.name
        assert (made.view.available, made.view.source, made.view.hint) == (
            usd("2.5"),
            "admin",
            f"sk-stretto-…{made.secret[-4:]}",
        )
        again = await ledger.create(label="Carol", plan=None, balance=usd("2.5"), idempotency="one")
        assert (again.view, again.secret) == (made.view, None)
        for other in ({"label": "Dave", "balance": usd("2.5")}, {"label": "Carol", "balance": 0}):
            with pytest.raises(InvalidRequest) as caught:
                await ledger.create(plan=None, idempotency="one", **other)  # type: ignore[arg-type]
            assert (caught.value.code, caught.value.status) == ("idempotency_conflict", 409)
        assert len(await ledger.views(limit=10)) == 1
    async with open_books(tmp_path, keys={}) as (ledger, _):
        assert ledger.authenticate(made.secret.encode()).label == "Carol"


async def test_a_topup_is_made_once_however_often_and_however_parallel(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        name = key_of(ledger).name
        entries: set[int] = set()

        async def top_up() -> None:
            given = await ledger.give("topup", name, usd(5), idempotency="monday", note="paid")
            entries.add(given.entry)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(top_up)
        assert len(entries) == 1
        assert await available(ledger) == usd(6)
        for kind, other, amount in (
            ("topup", name, usd(6)),
            ("topup", key_of(ledger, BOB).name, usd(5)),
            ("adjust", name, usd(5)),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await ledger.give(kind, other, amount, idempotency="monday", note="")  # type: ignore[arg-type]
            assert (caught.value.code, caught.value.status) == ("idempotency_conflict", 409)
        assert await available(ledger) == usd(6)


async def test_an_adjustment_goes_down_to_nothing_and_no_further(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        name = key_of(ledger).name
        await ledger.reserve(key_of(ledger), ask())
        with pytest.raises(InvalidRequest) as caught:
            await ledger.give("adjust", name, -usd(1), idempotency="a", note="")
        assert (caught.value.code, caught.value.status, caught.value.param) == (
            "insufficient_balance",
            409,
            "amount",
        )
        await ledger.give("adjust", name, HOLD - usd(1), idempotency="b", note="")
        assert await available(ledger) == 0


async def test_amounts_have_a_limit(tmp_path: Path) -> None:
    async with open_books(tmp_path, keys={ALICE: {}}) as (ledger, _):
        name = key_of(ledger).name
        with pytest.raises(InvalidRequest) as caught:
            await ledger.give("topup", name, usd(1_000_000) + 1, idempotency="a", note="")
        assert caught.value.code == "amount_too_large"
        for number in range(9):  # given, and taken away again: the books have a size too
            await ledger.give("topup", name, usd(1_000_000), idempotency=f"up {number}", note="")
            hold = await ledger.reserve(
                key_of(ledger), ask(prompt_tokens=usd(1_000_000) // 10**6, max_tokens=0)
            )
            await ledger.settle(hold, Used(usd(1_000_000) // 10**6, 0, 0), "finished")
        with pytest.raises(InvalidRequest) as caught:
            await ledger.give("topup", name, 1, idempotency="b", note="")
        assert caught.value.code == "amount_too_large"


async def test_a_revoked_key_is_refused_while_its_requests_go_on(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        key = key_of(ledger)
        hold = await ledger.reserve(key, ask())
        for _ in range(2):
            assert (await ledger.revoke(key.name)).revoked_us is not None
        with pytest.raises(AuthenticationError, match="revoked"):
            key_of(ledger)
        with pytest.raises(AuthenticationError, match="revoked"):  # one that had got in just before
            await ledger.reserve(key, ask())
        with pytest.raises(InvalidRequest) as caught:
            await ledger.give("topup", key.name, 1, idempotency="a", note="")
        assert (caught.value.code, caught.value.status) == ("key_revoked", 409)
        closing = await ledger.settle(hold, Used(100, 0, 50), "finished")
        assert closing.available == usd(1) - HOLD
        await ledger.give("adjust", key.name, -closing.available, idempotency="refund", note="paid back")
        assert key_of(ledger, BOB).label == "Bob"
    async with open_books(tmp_path) as (ledger, _):
        with pytest.raises(AuthenticationError, match="revoked"):
            key_of(ledger)


async def test_the_file_gives_a_balance_once_and_labels_every_time(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        await ledger.settle(await ledger.reserve(key_of(ledger), ask()), Used(100, 0, 50), "finished")
    changed = {
        ALICE: {"label": "Alice B.", "balance": "1000"},
        "sk-test-carol-000000000000000000003": {"balance": "3"},
    }
    async with open_books(tmp_path, keys=changed) as (ledger, _):
        assert await available(ledger) == usd(1) - HOLD
        assert key_of(ledger).label == "Alice B."
        assert key_of(ledger, BOB).label == "Bob"  # not in the file any more, and still a key
        assert await available(ledger, "sk-test-carol-000000000000000000003") == usd(3)


async def test_lines_are_a_statement(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        key = key_of(ledger)
        await ledger.settle(await ledger.reserve(key, ask(request="r1")), Used(100, 0, 50), "finished")
        await ledger.release(await ledger.reserve(key, ask(request="r2")))
        await ledger.give("adjust", key.name, usd("-0.5"), idempotency="a", note="refund")
        lines = list(await ledger.lines(key.name, before=2**62, limit=10, holds=False))
        assert [(line.kind, line.available + line.held, line.credit_after) for line in lines] == [
            ("adjust", usd("-0.5"), usd("0.5") - HOLD),
            ("settle", -HOLD, usd(1) - HOLD),
            ("topup", usd(1), usd(1)),
        ]
        assert (lines[0].note, lines[0].request) == ("refund", None)
        assert (lines[1].request, lines[1].reason, lines[1].prompt_tokens, lines[1].completion_tokens) == (
            "r1",
            "finished",
            100,
            50,
        )
        everything = list(await ledger.lines(key.name, before=2**62, limit=10, holds=True))
        assert [line.kind for line in everything] == [
            "adjust",
            "release",
            "reserve",
            "settle",
            "reserve",
            "topup",
        ]
        assert [line.credit_after for line in everything if line.request == "r2"] == [usd(1) - HOLD] * 2
        page = list(await ledger.lines(key.name, before=everything[1].id, limit=2, holds=True))
        assert page == everything[2:4]
        assert [
            line.kind
            for line in await ledger.lines(key_of(ledger, BOB).name, before=2**62, limit=9, holds=True)
        ] == ["topup"]
        for missing in ("key_none", ALICE, ""):
            with pytest.raises(NotFound) as caught:
                await ledger.lines(missing, before=2**62, limit=1, holds=False)
            assert caught.value.code == "key_not_found"


async def test_views_come_in_pages_in_the_order_they_were_made(tmp_path: Path) -> None:
    async with open_books(tmp_path, keys={}) as (ledger, _):
        names = [
            (await ledger.create(label=str(n), plan=None, balance=0, idempotency=None)).view.name
            for n in range(5)
        ]
        first = list(await ledger.views(limit=3))
        second = list(await ledger.views(after=first[-1].id, limit=3))
        assert [view.name for view in first + second] == names
