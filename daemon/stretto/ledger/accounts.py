"""Keys and what an administrator does with them. Closures for the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stretto.errors import InvalidRequest, NotFound
from stretto.ledger.journal import ADJUSTMENTS, FUNDS, accounts_of, open_accounts, post
from stretto.ledger.keys import Key, name_of
from stretto.ledger.money import MAX_AMOUNT_PICO, MAX_FUNDS_PICO, format_usd
from stretto.store import now_us

Source = Literal["file", "admin"]
GivenKind = Literal["topup", "adjust"]

_HOUSE: Mapping[GivenKind, int] = {"topup": FUNDS, "adjust": ADJUSTMENTS}

_VIEWS = """
    SELECT k.id, k.name, k.hint, k.label, k.plan, k.source, k.created_us, k.revoked_us,
        (SELECT balance FROM ledger_account WHERE key = k.id AND kind = 'available'),
        (SELECT balance FROM ledger_account WHERE key = k.id AND kind = 'held'),
        (SELECT balance FROM ledger_account WHERE key = k.id AND kind = 'spent')
    FROM ledger_key k
"""
_LINES = """
    SELECT e.id, e.kind, e.note, e.credit_after, e.at_us,
        coalesce((SELECT amount FROM ledger_posting WHERE entry = e.id AND account = a.id), 0),
        coalesce((SELECT amount FROM ledger_posting WHERE entry = e.id AND account = h.id), 0),
        r.request, r.model, r.reason, r.prompt_tokens, r.cached_tokens, r.completion_tokens
    FROM ledger_entry e
    JOIN ledger_account a ON a.key = e.key AND a.kind = 'available'
    JOIN ledger_account h ON h.key = e.key AND h.kind = 'held'
    LEFT JOIN ledger_reservation r ON r.id = e.reservation
    WHERE e.key = ? AND e.id < ? AND (? OR e.kind IN ('topup', 'adjust', 'settle'))
    ORDER BY e.id DESC LIMIT ?
"""
MAX_ROW = 2**63 - 1


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key as an administrator sees it; amounts in picodollars.

    Attributes:
        hint: its last characters, where it was ever known.
        source: whether the provider file names it, or an administrator made it.
        available, held, spent: see the journal.
    """

    id: int
    name: str
    hint: str
    label: str
    plan: str | None
    source: Source
    created_us: int
    revoked_us: int | None
    available: int
    held: int
    spent: int

    @property
    def given(self) -> int:
        """Top-ups and adjustments, all together."""
        return self.available + self.held + self.spent


@dataclass(frozen=True, slots=True)
class Line:
    """An entry of the journal as its key sees it; amounts in picodollars.

    Attributes:
        available, held: by how much the key's accounts changed.
        credit_after: both accounts together after it.
        request, model, reason, prompt_tokens, cached_tokens, completion_tokens: of the request, where it was one.
    """

    id: int
    kind: str
    note: str
    credit_after: int
    at_us: int
    available: int
    held: int
    request: str | None
    model: str | None
    reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """What became of a top-up or an adjustment. ``replayed``: it had been made before, with the same idempotency key."""

    entry: int
    view: KeyView
    replayed: bool


@dataclass(frozen=True, slots=True)
class NewKey:
    """What is asked for with a new key.

    Attributes:
        balance: picodollars that it begins with.
        idempotency: asking again with the same one makes no second key; None makes one each time.
    """

    digest: bytes
    hint: str
    label: str
    plan: str | None
    source: Source
    balance: int
    idempotency: str | None = None


def all_keys(connection: sqlite3.Connection) -> list[Key]:
    """Every key, for the key ring."""
    rows = connection.execute("SELECT id, name, digest, label, plan, revoked_us IS NOT NULL FROM ledger_key")
    return [
        Key(number, name, digest, label, plan, bool(revoked))
        for number, name, digest, label, plan, revoked in rows
    ]


def create(connection: sqlite3.Connection, new: NewKey) -> tuple[KeyView, bool]:
    """Make a key and give it its first balance. Returns it, and whether it had been made before.

    Raises:
        InvalidRequest: ``amount_too_large``, or ``idempotency_conflict`` (409).
    """
    if new.idempotency is not None:
        row = connection.execute(
            "SELECT name, label, plan FROM ledger_key WHERE idempotency = ?", (new.idempotency,)
        ).fetchone()
        if row is not None:
            first = _given_before(connection, FUNDS, _first(row[0]))
            if (*row[1:], first[2] if first else 0) != (new.label, new.plan, new.balance):
                raise _conflict(new.idempotency)
            return view(connection, row[0]), True
    name = name_of(new.digest)
    cursor = connection.execute(
        "INSERT INTO ledger_key (name, digest, hint, label, plan, source, idempotency, created_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (name, new.digest, new.hint, new.label, new.plan, new.source, new.idempotency, now_us()),
    )
    assert cursor.lastrowid is not None
    open_accounts(connection, cursor.lastrowid)
    made = view(connection, name)
    if new.balance:
        _give(connection, "topup", made, new.balance, _first(name), "first balance")
    return view(connection, name), False


def give(
    connection: sqlite3.Connection, kind: GivenKind, name: str, amount: int, *, idempotency: str, note: str
) -> Given:
    """Top a key up, or adjust what it has; the same idempotency key does it once.

    Raises:
        NotFound: ``key_not_found``.
        InvalidRequest: ``key_revoked`` (409, a top-up), ``idempotency_conflict`` (409), ``insufficient_balance`` (409),
            ``amount_too_large``.
    """
    before = view(connection, name)
    stored = f"admin:{idempotency}"
    done = _given_before(connection, _HOUSE[kind], stored)
    if done is not None:
        entry, *what = done
        if what != [kind, amount, before.id]:
            raise _conflict(idempotency)
        return Given(entry, before, True)
    if kind == "topup" and before.revoked_us is not None:
        raise InvalidRequest(
            f"The key '{name}' has been revoked.", code="key_revoked", status=409, param="key"
        )
    entry = _give(connection, kind, before, amount, stored, note)
    return Given(entry, view(connection, name), False)


def revoke(connection: sqlite3.Connection, name: str) -> KeyView:
    """Refuse the key from now on. Its requests that run go on, and its balance stays for an adjustment. Idempotent.

    Raises:
        NotFound: ``key_not_found``.
    """
    view(connection, name)
    connection.execute(
        "UPDATE ledger_key SET revoked_us = ? WHERE name = ? AND revoked_us IS NULL", (now_us(), name)
    )
    return view(connection, name)


def describe(connection: sqlite3.Connection, name: str, label: str, plan: str | None) -> None:
    """Give a key the label and the plan that the provider file has for it."""
    connection.execute("UPDATE ledger_key SET label = ?, plan = ? WHERE name = ?", (label, plan, name))


def view(connection: sqlite3.Connection, name: str) -> KeyView:
    """One key.

    Raises:
        NotFound: ``key_not_found``.
    """
    row = connection.execute(f"{_VIEWS} WHERE k.name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(
            f"There is no key '{name[:100]}' in the ledger.",
            code="key_not_found",
            param="key",
            remedy="GET /admin/credits lists the keys.",
        )
    return KeyView(*row)


def views(connection: sqlite3.Connection, after: int, limit: int) -> list[KeyView]:
    """Keys in the order in which they were made, from the one after row ``after`` on."""
    return [
        KeyView(*row)
        for row in connection.execute(f"{_VIEWS} WHERE k.id > ? ORDER BY k.id LIMIT ?", (after, limit))
    ]


def lines(connection: sqlite3.Connection, name: str, before: int, limit: int, holds: bool) -> Sequence[Line]:
    """A key's entries, the newest first, from the one before entry ``before`` on; with ``holds`` reservations and releases too.

    Raises:
        NotFound: ``key_not_found``.
    """
    key = view(connection, name).id
    return [Line(*row) for row in connection.execute(_LINES, (key, before, holds, limit))]


def house(connection: sqlite3.Connection) -> dict[str, int]:
    """Sums of all accounts by kind, in picodollars; together they are zero."""
    rows = connection.execute("SELECT kind, sum(balance) FROM ledger_account GROUP BY kind ORDER BY kind")
    return {"available": 0, "held": 0, "spent": 0, **dict(rows)}


def _first(name: str) -> str:
    """The idempotency key of a key's first balance."""
    return f"first:{name}"


def _given_before(
    connection: sqlite3.Connection, house: int, idempotency: str
) -> tuple[int, str, int, int] | None:
    """The entry of that idempotency key: its row, its kind, what it gave and to which key; None when there is none."""
    found: tuple[int, str, int, int] | None = connection.execute(
        "SELECT e.id, e.kind, coalesce(-p.amount, 0), e.key FROM ledger_entry e "
        "LEFT JOIN ledger_posting p ON p.entry = e.id AND p.account = ? WHERE e.idempotency = ?",
        (house, idempotency),
    ).fetchone()
    return found


def _give(
    connection: sqlite3.Connection, kind: GivenKind, before: KeyView, amount: int, idempotency: str, note: str
) -> int:
    after = before.available + amount
    if after < 0:
        raise InvalidRequest(
            f"The key has ${format_usd(before.available)} available, so ${format_usd(-amount)} cannot be taken from it.",
            code="insufficient_balance",
            status=409,
            param="amount",
        )
    house = _HOUSE[kind]
    balances = dict(connection.execute("SELECT id, balance FROM ledger_account WHERE key IS NULL"))
    balances[house] -= amount
    if (
        after > MAX_AMOUNT_PICO
        or max(map(abs, (*balances.values(), sum(balances.values())))) > MAX_FUNDS_PICO
    ):
        raise InvalidRequest(
            f"The key would have ${format_usd(after)}; a key has at most ${format_usd(MAX_AMOUNT_PICO)}, and all together are given at "
            f"most ${format_usd(MAX_FUNDS_PICO)}.",
            code="amount_too_large",
            param="amount",
        )
    accounts = accounts_of(connection, before.id)
    moves = {house: -amount, accounts.available_id: amount}
    return post(connection, kind, before.id, moves, idempotency=idempotency, note=note)


def _conflict(idempotency: str) -> InvalidRequest:
    return InvalidRequest(
        f"The idempotency key '{idempotency[:100]}' was used for something else.",
        code="idempotency_conflict",
        status=409,
        param="idempotency_key",
        remedy="Send a new one with each new wish, and the same one only to try again.",
    )
