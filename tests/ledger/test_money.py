"""Money and prices, against the decimal module."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.ledger import Prices, Used, format_usd, parse_usd
from stretto.ledger.money import MAX_AMOUNT_PICO, MAX_FUNDS_PICO

AMOUNTS = st.integers(-9_999_999 * 10**12, 9_999_999 * 10**12)
TOKENS = st.integers(0, 10**7)
PRICE = st.integers(0, 10**9)


@given(AMOUNTS, st.integers(0, 12))
def test_what_is_written_is_read_back_exactly(pico: int, decimals: int) -> None:
    text = format_usd(pico, decimals)
    assert Decimal(text) == Decimal(pico).scaleb(-12)
    assert parse_usd(text) == pico
    assert "e" not in text.lower()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("25", "25.00"),
        ("0", "0.00"),
        ("0.0000002", "0.0000002"),
        ("-1.5", "-1.50"),
        ("0.000000000001", "0.000000000001"),
    ],
)
def test_amounts_look_like_money(text: str, shown: str) -> None:
    assert format_usd(parse_usd(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".5",
        "1.",
        "+1",
        "1e3",
        "1,5",
        " 1",
        "1\n",
        "0.0000000000001",
        "12345678",
        "٣",
        "--1",
        "0x1",
        "NaN",
        "1_000",
    ],
)
def test_anything_else_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_usd(text)


def test_sums_stay_inside_the_integers_of_sqlite() -> None:
    assert MAX_FUNDS_PICO + MAX_AMOUNT_PICO > 2**63 - 1 > MAX_FUNDS_PICO


@given(PRICE, PRICE, PRICE, PRICE, TOKENS, TOKENS, TOKENS)
def test_a_cost_is_the_sum_of_its_parts_and_never_above_the_most(
    prompt: int,
    cached: int,
    completion: int,
    request: int,
    prompt_tokens: int,
    cached_tokens: int,
    answer: int,
) -> None:
    prices = Prices(prompt, min(cached, prompt), completion, request)
    used = Used(prompt_tokens, min(cached_tokens, prompt_tokens), answer)
    parts = (
        Decimal(used.prompt_tokens - used.cached_tokens) * prices.prompt
        + Decimal(used.cached_tokens) * prices.cached
        + Decimal(answer) * completion
        + (request if prompt_tokens + answer else 0)
    )
    assert prices.cost(used) == parts
    assert prices.cost(used) <= prices.most(prompt_tokens, answer)


@given(PRICE, PRICE, PRICE, st.integers(0, 10**15), st.integers(1, 10**6))
def test_what_is_affordable_can_be_paid_and_one_token_more_cannot(
    prompt: int, completion: int, request: int, available: int, prompt_tokens: int
) -> None:
    prices = Prices(prompt, prompt, completion, request)
    tokens = prices.affordable_tokens(available, prompt_tokens)
    if tokens is None:
        assert completion == 0
        assert prices.most(prompt_tokens, 10**9) <= available
    elif tokens < 0:
        assert prices.most(prompt_tokens, 0) > available
    else:
        assert prices.most(prompt_tokens, tokens) <= available < prices.most(prompt_tokens, tokens + 1)


def test_nothing_costs_nothing() -> None:
    prices = Prices(1, 1, 1, 1000)
    assert prices.cost(Used(0, 0, 0)) == 0
    assert prices.cost(Used(1, 0, 0)) == 1001
    assert not prices.free
    assert Prices(0, 0, 0, 0).free
