"""What is always true of the books. ``stretto db check`` looks at all of it, the daemon at its start at what costs little."""

from __future__ import annotations

import sqlite3

from stretto.ledger.journal import replay
from stretto.ledger.money import format_usd
from stretto.store import Check

_ENTRY_SUMS = """
    SELECT entry, sum(amount) FROM ledger_posting GROUP BY entry HAVING sum(amount) <> 0
"""
_OPEN_SUMS = """
    SELECT a.key, a.balance, (SELECT coalesce(sum(r.amount), 0) FROM ledger_reservation r WHERE r.key = a.key AND r.state = 'held')
    FROM ledger_account a WHERE a.kind = 'held'
"""
_CLOSINGS = """
    SELECT r.id, r.state, e.kind FROM ledger_reservation r
    LEFT JOIN ledger_entry e ON e.reservation = r.id AND e.kind IN ('settle', 'release')
    WHERE coalesce(e.kind, '') <> CASE r.state WHEN 'settled' THEN 'settle' WHEN 'released' THEN 'release' ELSE '' END
"""
_COSTS = """
    SELECT id, cost, min(amount, CASE WHEN prompt_tokens + completion_tokens = 0 THEN 0 ELSE
        request_price + (prompt_tokens - cached_tokens) * prompt_price + cached_tokens * cached_price + completion_tokens * completion_price END)
        AS due
    FROM ledger_reservation WHERE state = 'settled' AND cost <> due
"""
_SPENT = """
    SELECT a.key, a.balance, (SELECT coalesce(sum(r.cost), 0) FROM ledger_reservation r WHERE r.key = a.key) AS costs
    FROM ledger_account a WHERE a.kind = 'spent' AND a.balance <> costs
"""
_LAST_CREDITS = """
    SELECT k.name, e.credit_after, (SELECT sum(balance) FROM ledger_account WHERE key = k.id AND kind IN ('available', 'held'))
    FROM ledger_key k JOIN ledger_entry e ON e.id = (SELECT max(id) FROM ledger_entry WHERE key = k.id)
"""


def trial_balance(connection: sqlite3.Connection) -> list[str]:
    """What is wrong with the balances as they are: all accounts sum to zero, and what is held is what open reservations hold."""
    total = sum(balance for (balance,) in connection.execute("SELECT balance FROM ledger_account"))
    problems = [] if total == 0 else [f"all accounts sum to {format_usd(total)} and not to zero"]
    return problems + [
        f"key {key} has {format_usd(held)} held, and its reservations hold {format_usd(reserved)}"
        for key, held, reserved in connection.execute(_OPEN_SUMS)
        if held != reserved
    ]


def _entries(connection: sqlite3.Connection) -> list[str]:
    return [
        f"the postings of entry {entry} sum to {format_usd(total)} and not to zero"
        for entry, total in connection.execute(_ENTRY_SUMS)
    ]


def _balances(connection: sqlite3.Connection) -> list[str]:
    told = replay(connection)
    accounts = list(connection.execute("SELECT id, kind, balance FROM ledger_account"))
    problems = [
        f"account {number} ({kind}) has {format_usd(balance)}, and by the journal {format_usd(told.get(number, 0))}"
        for number, kind, balance in accounts
        if told.get(number, 0) != balance
    ]
    return problems + [
        f"the last entry of {name} leaves {format_usd(after)}, and its accounts have {format_usd(credit)}"
        for name, after, credit in connection.execute(_LAST_CREDITS)
        if after != credit
    ]


def _reservations(connection: sqlite3.Connection) -> list[str]:
    problems = [
        f"reservation {number} is {state}, and the journal has {kind or 'nothing'} for it"
        for number, state, kind in connection.execute(_CLOSINGS)
    ]
    problems += [
        f"reservation {number} cost {format_usd(cost)}, and by its tokens and prices {format_usd(due)}"
        for number, cost, due in connection.execute(_COSTS)
    ]
    return problems + [
        f"key {key} has spent {format_usd(spent)}, and its requests cost {format_usd(costs)}"
        for key, spent, costs in connection.execute(_SPENT)
    ]


CHECKS = (
    Check("trial balance", trial_balance),
    Check("journal", _entries),
    Check("balances", _balances),
    Check("reservations", _reservations),
)
