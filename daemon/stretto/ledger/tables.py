"""The ledger's tables: accounts, a journal that only grows, and the reservations of requests."""

from __future__ import annotations

from stretto.ledger.checks import CHECKS
from stretto.ledger.journal import ADJUSTMENTS, FUNDS
from stretto.ledger.money import MAX_FUNDS_PICO
from stretto.store import Schema, Step

_KEY = """
    CREATE TABLE ledger_key (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
        hint TEXT NOT NULL,
        label TEXT NOT NULL,
        plan TEXT,
        source TEXT NOT NULL CHECK (source IN ('file', 'admin')),
        idempotency TEXT UNIQUE,
        created_us INTEGER NOT NULL,
        revoked_us INTEGER
    ) STRICT
"""
_ACCOUNT = f"""
    CREATE TABLE ledger_account (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL CHECK (kind IN ('funds', 'adjustments', 'available', 'held', 'spent')),
        key INTEGER REFERENCES ledger_key (id),
        balance INTEGER NOT NULL DEFAULT 0 CHECK (abs(balance) <= {MAX_FUNDS_PICO}),
        UNIQUE (key, kind),
        CHECK ((key IS NOT NULL) = (kind IN ('available', 'held', 'spent'))),
        CHECK (key IS NULL OR balance >= 0)
    ) STRICT
"""
_RESERVATION = """
    CREATE TABLE ledger_reservation (
        id INTEGER PRIMARY KEY,
        key INTEGER NOT NULL REFERENCES ledger_key (id),
        request TEXT NOT NULL,
        model TEXT NOT NULL,
        amount INTEGER NOT NULL CHECK (amount >= 0),
        prompt_price INTEGER NOT NULL,
        cached_price INTEGER NOT NULL,
        completion_price INTEGER NOT NULL,
        request_price INTEGER NOT NULL,
        state TEXT NOT NULL DEFAULT 'held' CHECK (state IN ('held', 'settled', 'released')),
        reason TEXT,
        prompt_tokens INTEGER,
        cached_tokens INTEGER,
        completion_tokens INTEGER,
        cost INTEGER CHECK (cost BETWEEN 0 AND amount),
        opened_us INTEGER NOT NULL,
        closed_us INTEGER,
        CHECK ((state = 'held') = (reason IS NULL)),
        CHECK ((state = 'settled') = (cost IS NOT NULL))
    ) STRICT
"""
_ENTRY = """
    CREATE TABLE ledger_entry (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL CHECK (kind IN ('topup', 'adjust', 'reserve', 'settle', 'release')),
        key INTEGER NOT NULL REFERENCES ledger_key (id),
        reservation INTEGER REFERENCES ledger_reservation (id),
        idempotency TEXT UNIQUE,
        note TEXT NOT NULL,
        credit_after INTEGER NOT NULL,
        at_us INTEGER NOT NULL,
        CHECK ((reservation IS NOT NULL) = (kind IN ('reserve', 'settle', 'release')))
    ) STRICT
"""
_POSTING = """
    CREATE TABLE ledger_posting (
        entry INTEGER NOT NULL REFERENCES ledger_entry (id),
        account INTEGER NOT NULL REFERENCES ledger_account (id),
        amount INTEGER NOT NULL CHECK (amount <> 0),
        PRIMARY KEY (entry, account)
    ) STRICT, WITHOUT ROWID
"""


def _append_only(table: str) -> tuple[str, str]:
    """What is written to a journal stays as it is, whoever has the connection."""
    change, removal = (
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} only grows'); END"
        for event in ("UPDATE", "DELETE")
    )
    return change, removal


SCHEMA = Schema(
    "ledger",
    (
        Step(
            "tables",
            (
                _KEY,
                _ACCOUNT,
                f"INSERT INTO ledger_account (id, kind) VALUES ({FUNDS}, 'funds'), ({ADJUSTMENTS}, 'adjustments')",
                _RESERVATION,
                "CREATE INDEX ledger_reservation_held ON ledger_reservation (id) WHERE state = 'held'",
                _ENTRY,
                "CREATE INDEX ledger_entry_of_key ON ledger_entry (key, id)",
                # Of each reservation there is at most one entry of a kind: nothing is settled twice, or settled and released.
                "CREATE UNIQUE INDEX ledger_entry_opening ON ledger_entry (reservation) WHERE kind = 'reserve'",
                "CREATE UNIQUE INDEX ledger_entry_closing ON ledger_entry (reservation) WHERE kind IN ('settle', 'release')",
                _POSTING,
                *_append_only("ledger_entry"),
                *_append_only("ledger_posting"),
            ),
        ),
    ),
    CHECKS,
)
