"""The journal: the one place where money moves. Every entry's postings sum to zero, and so does the whole.

Accounts: what the outside paid in (``funds``, below zero), what was corrected (``adjustments``), and of every key what it can spend
(``available``), what its running requests may cost at most (``held``), and what it has paid (``spent``). Nothing is ever changed or deleted;
an error is put right by a further entry. Balances are kept beside the journal, and follow from it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stretto.store import now_us

FUNDS = 1
ADJUSTMENTS = 2

EntryKind = Literal["topup", "adjust", "reserve", "settle", "release"]


@dataclass(frozen=True, slots=True)
class KeyAccounts:
    """A key's accounts, by row, and what is in them."""

    available_id: int
    available: int
    held_id: int
    held: int
    spent_id: int
    spent: int

    @property
    def credit(self) -> int:
        """Available and held together: what the key is worth."""
        return self.available + self.held


def open_accounts(connection: sqlite3.Connection, key: int) -> None:
    """Make a new key's accounts."""
    connection.executemany(
        "INSERT INTO ledger_account (kind, key) VALUES (?, ?)",
        [(kind, key) for kind in ("available", "held", "spent")],
    )


def accounts_of(connection: sqlite3.Connection, key: int) -> KeyAccounts:
    """A key's accounts, as they are now."""
    rows = connection.execute("SELECT kind, id, balance FROM ledger_account WHERE key = ?", (key,))
    found = {kind: (row, balance) for kind, row, balance in rows}
    return KeyAccounts(*found["available"], *found["held"], *found["spent"])


def post(
    connection: sqlite3.Connection,
    kind: EntryKind,
    key: int,
    moves: Mapping[int, int],
    *,
    reservation: int | None = None,
    idempotency: str | None = None,
    note: str = "",
) -> int:
    """Write an entry and move its amounts.

    Args:
        moves: picodollars by account; they sum to zero. Those of 0 leave no posting.

    Returns:
        The entry's row.

    Raises:
        ValueError: they do not sum to zero.
        sqlite3.IntegrityError: a key's account would fall below zero, or the entry was written before (``idempotency``, or a second
            closing of a reservation).
    """
    if sum(moves.values()) != 0:
        raise ValueError(f"the postings of an entry sum to {sum(moves.values())}, not to zero")
    for account, amount in moves.items():
        connection.execute("UPDATE ledger_account SET balance = balance + ? WHERE id = ?", (amount, account))
    credit = accounts_of(connection, key).credit
    cursor = connection.execute(
        "INSERT INTO ledger_entry (kind, key, reservation, idempotency, note, credit_after, at_us) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (kind, key, reservation, idempotency, note, credit, now_us()),
    )
    entry = cursor.lastrowid
    assert entry is not None
    connection.executemany(
        "INSERT INTO ledger_posting (entry, account, amount) VALUES (?, ?, ?)",
        [(entry, account, amount) for account, amount in moves.items() if amount],
    )
    return entry


def replay(connection: sqlite3.Connection) -> dict[int, int]:
    """Every account's balance, from the journal alone."""
    return dict(connection.execute("SELECT account, sum(amount) FROM ledger_posting GROUP BY account"))
