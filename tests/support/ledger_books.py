"""A ledger in a directory of its own, its provider file, and what its books say, read with plain SQL."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from stretto.ledger import SCHEMA, Ledger, load_provider
from stretto.ledger.prices import Prices
from stretto.ledger.reservations import Ask
from stretto.store import Store, check
from stretto.tables import SCHEMAS

ADMIN_TOKEN = "an-admin-token-for-the-tests"
ALICE = "sk-test-alice-00000000000000000001"
BOB = "sk-test-bob-0000000000000000000002"

PRICING = {"prompt": "0.000001", "completion": "0.000002", "input_cache_read": "0.0000005"}
PRICES = Prices(prompt=10**6, cached=5 * 10**5, completion=2 * 10**6, request=0)
"""The same in picodollars."""


def provider_document(**changes: Any) -> dict[str, Any]:
    """A whole provider file for the echo model, in which two keys have a dollar each."""
    return {
        "admin_token": ADMIN_TOKEN,
        "models": {"echo": {"pricing": PRICING}},
        "keys": {ALICE: {"label": "Alice", "balance": "1"}, BOB: {"label": "Bob", "balance": "1"}},
        **changes,
    }


def write_provider(directory: Path, document: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """Write the file; its path."""
    path = directory / "provider.json"
    path.write_text(json.dumps(provider_document(**changes) if document is None else document))
    path.chmod(0o600)
    return path


@asynccontextmanager
async def open_books(directory: Path, **changes: Any) -> AsyncIterator[tuple[Ledger, Store]]:
    """A ledger on a store of all rooms; afterwards its books are checked."""
    provider = load_provider(write_provider(directory, **changes))
    path = directory / "stretto.db"
    async with await Store.open(path, SCHEMAS) as store:
        yield await Ledger.open(store, provider, provider.offer_of(["echo"])), store
    require_balanced(path)


def ask(
    prompt_tokens: int = 100,
    max_tokens: int = 50,
    *,
    named: bool = True,
    answers: int = 1,
    request: str = "r",
) -> Ask:
    """A request of the usual prices."""
    return Ask(request, "echo", PRICES, prompt_tokens, (max_tokens,), answers, named)


def require_balanced(path: Path) -> None:
    """Fail unless every check of the store holds, and the journal, added up here once more, sums to zero."""
    report = check(path, SCHEMAS)
    assert report.problems == ()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert sum(amount for (amount,) in connection.execute("SELECT amount FROM ledger_posting")) == 0
        assert (
            connection.execute("SELECT min(balance) FROM ledger_account WHERE key IS NOT NULL").fetchone()[0]
            >= 0
        )


def reservations(path: Path) -> dict[str, tuple[str, str | None, int | None]]:
    """State, reason and cost of every reservation, by its request."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT request, state, reason, cost FROM ledger_reservation ORDER BY id")
        return {request: (state, reason, cost) for request, state, reason, cost in rows}


def usd(text: str | float) -> int:
    """Picodollars, by way of Decimal and not of the code that is tested."""
    return int(Decimal(str(text)) * 10**12)


def empty_books() -> sqlite3.Connection:
    """The ledger's tables in memory, as the writer's connection has them."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for step in SCHEMA.steps:
        assert not callable(step.change)
        for statement in step.change:
            connection.execute(statement)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection
