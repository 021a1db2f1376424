"""Keeping, reading and forgetting cached answers: closures' bodies, on a connection that somebody else commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stretto.cache.answer import CachedAnswer
from stretto.cache.key import CacheKey

_DELETED_AT_ONCE = 500
_ANSWER_COLUMNS = "answer, stop_string, prompt_tokens, completion_tokens, cached_tokens"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What the index in memory knows of a row.

    Attributes:
        id: rows are numbered in the order in which they were written.
        vector: little-endian float32, or None.
    """

    id: int
    tenant: str
    session: str | None
    exact: bytes
    context: bytes
    created_us: int
    completion_tokens: int
    vector: bytes | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached answer, for its administrator."""

    id: int
    tenant: str
    session: str | None
    created_us: int
    question: str
    answer: CachedAnswer
    semantic: bool


def adopt(connection: sqlite3.Connection, fingerprint: str) -> int:
    """Say what makes the answers from now on; what something else made is dropped. Returns how many rows that were."""
    found = connection.execute("SELECT fingerprint FROM cache_state").fetchone()
    if found == (fingerprint,):
        return 0
    dropped = connection.execute("DELETE FROM cache_answer").rowcount
    connection.execute(
        "INSERT INTO cache_state (id, fingerprint) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint",
        (fingerprint,),
    )
    return dropped


def keys(connection: sqlite3.Connection) -> list[StoredKey]:
    """Every row's key, oldest first."""
    rows = connection.execute(
        "SELECT id, tenant, session, exact, context, created_us, completion_tokens, vector FROM cache_answer ORDER BY id"
    )
    return [StoredKey(*row) for row in rows]


def put(
    connection: sqlite3.Connection, key: CacheKey, answer: CachedAnswer, created_us: int, vector: bytes | None
) -> int:
    """Keep an answer, in place of the one to the very same request. Returns its id."""
    connection.execute("DELETE FROM cache_answer WHERE exact = ?", (key.exact,))
    cursor = connection.execute(
        """
        INSERT INTO cache_answer (tenant, session, exact, context, created_us, question, answer, stop_string,
                                  prompt_tokens, completion_tokens, cached_tokens, vector)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            key.tenant, key.session, key.exact, key.context, created_us, key.question, answer.text, answer.stop_string,
            answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, vector,
        ),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def exchanges(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, tuple[str, CachedAnswer]]:
    """Questions and answers of rows, by id; those that are gone are left out."""
    marks = ",".join("?" * len(ids))
    found = connection.execute(
        f"SELECT id, question, {_ANSWER_COLUMNS} FROM cache_answer WHERE id IN ({marks})", tuple(ids)
    )
    return {row_id: (question, CachedAnswer(*answer)) for row_id, question, *answer in found}


def delete(connection: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Delete rows; ids that are gone make no difference."""
    connection.executemany("DELETE FROM cache_answer WHERE id = ?", [(row_id,) for row_id in ids])


def page(connection: sqlite3.Connection, before: int | None, limit: int, tenant: str | None) -> list[Entry]:
    """Entries, newest first, older than the one with the id ``before``."""
    rows = connection.execute(
        f"""
        SELECT id, tenant, session, created_us, question, {_ANSWER_COLUMNS}, vector IS NOT NULL FROM cache_answer
        WHERE id < coalesce(?, 9223372036854775807) AND tenant = coalesce(?, tenant) ORDER BY id DESC LIMIT ?
        """,
        (before, tenant, limit),
    )
    return [_entry(row) for row in rows]


def entry(connection: sqlite3.Connection, row_id: int) -> Entry | None:
    """One entry."""
    row = connection.execute(
        f"SELECT id, tenant, session, created_us, question, {_ANSWER_COLUMNS}, vector IS NOT NULL FROM cache_answer WHERE id = ?",
        (row_id,),
    ).fetchone()
    return None if row is None else _entry(row)


def in_pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Ids in pieces that are deleted at once, so that no other write waits for long."""
    for start in range(0, len(ids), _DELETED_AT_ONCE):
        yield ids[start : start + _DELETED_AT_ONCE]


def _entry(row: tuple[object, ...]) -> Entry:
    row_id, tenant, session, created_us, question, *answer, semantic = row
    return Entry(row_id, tenant, session, created_us, question, CachedAnswer(*answer), bool(semantic))  # type: ignore[arg-type]
