"""Reservations: what a request may cost is held before it runs, and paid or given back when it has ended. Closures for the store.

held ──► settled     a finished answer, or what was made of one that was cancelled: its cost is paid, the rest given back
     └─► released    an answer that failed, or whose process died: everything is given back
Both ends are final; to settle or release again changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stretto.errors import AuthenticationError, InsufficientCredits
from stretto.ledger.journal import accounts_of, post
from stretto.ledger.money import format_usd
from stretto.ledger.prices import Prices, Used
from stretto.store import now_us

LEAST_ANSWER_TOKENS = 256
"""A request that names no ``max_tokens`` runs on what its key can pay, down to answers of this length."""

SettleReason = Literal["finished", "cancelled", "replayed"]
ReleaseReason = Literal["failed", "process_ended"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants to run on.

    Attributes:
        request: its id.
        model: what it asks.
        prices: those of its key.
        prompt_tokens: of all its prompts.
        limits: most tokens of an answer to each of them.
        answers: how many are drawn for each.
        named: whether the client named its limit; else limits may be lowered to what the key can pay.
    """

    request: str
    model: str
    prices: Prices
    prompt_tokens: int
    limits: tuple[int, ...]
    answers: int
    named: bool

    @property
    def most(self) -> int:
        """Picodollars that it costs at most, with its limits as they are."""
        return self.prices.most(self.prompt_tokens, self.answers * sum(self.limits))


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that was made.

    Attributes:
        id: its row.
        amount: picodollars held.
        limits: those that it is paid for.
        available: what the key can spend beside it.
    """

    id: int
    prices: Prices
    amount: int
    limits: tuple[int, ...]
    available: int


@dataclass(frozen=True, slots=True)
class Closing:
    """How a reservation ended: what was paid, and what the key can spend now."""

    cost: int
    available: int


def granted_limits(ask: Ask, available: int) -> tuple[int, ...] | None:
    """The limits that a key with so much can pay for, or None when that is too little."""
    if ask.most <= available:
        return ask.limits
    affordable = ask.prices.affordable_tokens(available, ask.prompt_tokens)
    if ask.named or affordable is None:
        return None
    cap = _even_cap(ask.limits, affordable // ask.answers)
    return tuple(min(limit, cap) for limit in ask.limits) if cap >= LEAST_ANSWER_TOKENS else None


def _even_cap(limits: Sequence[int], budget: int) -> int:
    """The highest cap with which all limits together are within the budget."""
    left = sorted(limits)
    while left:
        cap = budget // len(left)
        if left[0] > cap:
            return cap
        budget -= left.pop(0)  # one that needs no cap leaves the others more
    return budget


def reserve(connection: sqlite3.Connection, key: int, ask: Ask) -> Hold:
    """Hold the most that a request can cost.

    Raises:
        InsufficientCredits: the key cannot pay it.
        AuthenticationError: the key has been revoked.
    """
    (revoked,) = connection.execute(
        "SELECT revoked_us IS NOT NULL FROM ledger_key WHERE id = ?", (key,)
    ).fetchone()
    if revoked:
        raise revoked_error()
    accounts = accounts_of(connection, key)
    limits = granted_limits(ask, accounts.available)
    if limits is None:
        raise _insufficient(ask, accounts.available, accounts.held)
    amount = ask.prices.most(ask.prompt_tokens, ask.answers * sum(limits))
    reservation = _open(connection, key, ask.request, ask.model, ask.prices, amount)
    moves = {accounts.available_id: -amount, accounts.held_id: amount}
    post(connection, "reserve", key, moves, reservation=reservation)
    return Hold(reservation, ask.prices, amount, limits, accounts.available - amount)


def settle(connection: sqlite3.Connection, reservation: int, used: Used, reason: SettleReason) -> Closing:
    """Pay what was used, never more than was held, and give back the rest."""
    key, amount, prices, cost = _held(connection, reservation)
    accounts = accounts_of(connection, key)
    if prices is None:
        return Closing(cost, accounts.available)
    cost = min(amount, prices.cost(used))
    moves = {accounts.held_id: -amount, accounts.spent_id: cost, accounts.available_id: amount - cost}
    post(connection, "settle", key, moves, reservation=reservation)
    connection.execute(
        "UPDATE ledger_reservation SET state = 'settled', reason = ?, prompt_tokens = ?, cached_tokens = ?, completion_tokens = ?, "
        "cost = ?, closed_us = ? WHERE id = ?",
        (reason, used.prompt_tokens, used.cached_tokens, used.completion_tokens, cost, now_us(), reservation),
    )
    return Closing(cost, accounts.available + amount - cost)


def release(connection: sqlite3.Connection, reservation: int, reason: ReleaseReason) -> Closing:
    """Give everything back."""
    key, amount, prices, cost = _held(connection, reservation)
    accounts = accounts_of(connection, key)
    if prices is None:
        return Closing(cost, accounts.available)
    moves = {accounts.held_id: -amount, accounts.available_id: amount}
    post(connection, "release", key, moves, reservation=reservation)
    connection.execute(
        "UPDATE ledger_reservation SET state = 'released', reason = ?, closed_us = ? WHERE id = ?",
        (reason, now_us(), reservation),
    )
    return Closing(0, accounts.available + amount)


def charge(
    connection: sqlite3.Connection, key: int, request: str, model: str, prices: Prices, used: Used
) -> Closing:
    """Pay for an answer that is there already: hold its price and settle it, in one.

    Raises:
        InsufficientCredits, AuthenticationError: see ``reserve``.
    """
    # One answer of exactly so many tokens, and a prompt that was read as it was then.
    ask = Ask(request, model, prices, used.prompt_tokens, (used.completion_tokens,), 1, named=True)
    hold = reserve(connection, key, ask)
    return settle(connection, hold.id, used, "replayed")


def resolve(connection: sqlite3.Connection) -> int:
    """Release what a process that is no more has left open; returns how many reservations that were.

    An answer whose end a client has seen was settled before, so what is open here was never delivered whole, and nobody pays for it.
    """
    left = [
        number
        for (number,) in connection.execute(
            "SELECT id FROM ledger_reservation WHERE state = 'held' ORDER BY id"
        )
    ]
    for number in left:
        release(connection, number, "process_ended")
    return len(left)


def revoked_error() -> AuthenticationError:
    """What is told to who brings a key that was revoked."""
    return AuthenticationError(
        "This API key has been revoked.", remedy="Ask who runs this server for another."
    )


def _open(
    connection: sqlite3.Connection, key: int, request: str, model: str, prices: Prices, amount: int
) -> int:
    cursor = connection.execute(
        "INSERT INTO ledger_reservation (key, request, model, amount, prompt_price, cached_price, completion_price, request_price, "
        "opened_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key,
            request,
            model,
            amount,
            prices.prompt,
            prices.cached,
            prices.completion,
            prices.request,
            now_us(),
        ),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _held(connection: sqlite3.Connection, reservation: int) -> tuple[int, int, Prices | None, int]:
    """Key, amount, prices and cost of a reservation; no prices when it has ended, and then what was paid."""
    key, amount, state, cost, *prices = connection.execute(
        "SELECT key, amount, state, coalesce(cost, 0), prompt_price, cached_price, completion_price, request_price "
        "FROM ledger_reservation WHERE id = ?",
        (reservation,),
    ).fetchone()
    return key, amount, Prices(*prices) if state == "held" else None, cost


def _insufficient(ask: Ask, available: int, held: int) -> InsufficientCredits:
    affordable = ask.prices.affordable_tokens(available, ask.prompt_tokens) or 0
    each = _even_cap(ask.limits, affordable // ask.answers)
    remedy = "Top up the key"
    if each >= 1:
        remedy += f", or lower max_tokens to {each}"
    if held:
        remedy += ", or wait for its running requests to end"
    tokens = f"{ask.prompt_tokens} tokens of prompt and {ask.answers * sum(ask.limits)} of answer"
    return InsufficientCredits(
        f"This request may cost ${format_usd(ask.most)} ({tokens}), and the key has ${format_usd(available)} available"
        + (f" beside ${format_usd(held)} that its running requests hold." if held else "."),
        remedy=remedy + ".",
    )
