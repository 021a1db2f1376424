"""Adding, listing and forgetting entries: closures' bodies, on a connection that somebody else commits."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence

from stretto.memory.entry import TURN_CHARS, Entry, SessionCount, storable
from stretto.memory.meaning import Vector, keep
from stretto.memory.words import words
from stretto.store import now_us

_EVICTED_AT_ONCE = 200
_PURGED_AT_ONCE = 500
_COLUMNS = "key, kind, created_us, text, answer"


class NoRoom(Exception):
    """A session is full of notes, which nothing evicts."""


def session_number(connection: sqlite3.Connection, tenant: str, session: str) -> int | None:
    """A session's row, or None when it remembers nothing."""
    row = connection.execute(
        "SELECT id FROM memory_session WHERE tenant = ? AND name = ?", (tenant, session)
    ).fetchone()
    return None if row is None else int(row[0])


def add_exchange(
    connection: sqlite3.Connection,
    tenant: str,
    session: str,
    said: str,
    answered: str,
    max_entries: int,
    vector: Vector | None = None,
) -> bool:
    """Remember an exchange, each side cut to its limit. False when it has no place among the notes, or is the last one again."""
    said, answered = storable(said)[:TURN_CHARS], storable(answered)[:TURN_CHARS]
    number = _session(connection, tenant, session)
    last = connection.execute(
        "SELECT text, answer FROM memory_entry WHERE session = ? AND kind = 'exchange' ORDER BY id DESC LIMIT 1",
        (number,),
    ).fetchone()
    if last == (said, answered):
        return False
    if not _make_room(connection, number, max_entries):
        return False
    entry = _insert(connection, number, "exchange", said, answered, words(f"{said}\n{answered}"))
    if vector is not None:
        keep(connection, entry.key, vector)
    return True


def add_note(connection: sqlite3.Connection, tenant: str, session: str, text: str, max_entries: int) -> Entry:
    """Pin a note. The oldest exchange makes room for it.

    Raises:
        NoRoom: there is none to make room.
    """
    number = _session(connection, tenant, session)
    if not _make_room(connection, number, max_entries):
        raise NoRoom
    return _insert(connection, number, "note", storable(text), None, ())


def page(
    connection: sqlite3.Connection, tenant: str, session: str, after: int | None, limit: int
) -> list[Entry] | None:
    """Entries, oldest first, after the one whose key is ``after``; None when the session has no such entry."""
    number = session_number(connection, tenant, session)
    start = 0
    if after is not None:
        row = connection.execute(
            "SELECT id FROM memory_entry WHERE key = ? AND session = ?", (after, number)
        ).fetchone()
        if row is None:
            return None
        start = row[0]
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM memory_entry WHERE session = ? AND id > ? ORDER BY id LIMIT ?",
        (number, start, limit),
    )
    return [Entry(*row) for row in rows]


def notes(connection: sqlite3.Connection, session: int) -> list[Entry]:
    """All notes of a session, oldest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM memory_entry WHERE session = ? AND kind = 'note' ORDER BY id", (session,)
    )
    return [Entry(*row) for row in rows]


def forget(connection: sqlite3.Connection, tenant: str, session: str, key: int) -> bool:
    """Delete one entry of a session; False when the session has none of that key."""
    number = session_number(connection, tenant, session)
    return (
        connection.execute("DELETE FROM memory_entry WHERE key = ? AND session = ?", (key, number)).rowcount
        == 1
    )


def detach(connection: sqlite3.Connection, tenant: str, session: str) -> int:
    """Make a session unreachable at once; ``purge`` deletes it. Returns how many entries it had."""
    row = connection.execute(
        """
        UPDATE memory_session SET tenant = NULL, name = NULL WHERE tenant = ? AND name = ?
        RETURNING notes + exchanges
        """,
        (tenant, session),
    ).fetchone()
    return 0 if row is None else int(row[0])


def purge(connection: sqlite3.Connection) -> bool:
    """Delete a piece of what was detached; whether there was any. In pieces, so that no other write waits for long."""
    row = connection.execute("SELECT id FROM memory_session WHERE name IS NULL LIMIT 1").fetchone()
    if row is None:
        return False
    deleted = connection.execute(
        "DELETE FROM memory_entry WHERE id IN (SELECT id FROM memory_entry WHERE session = ? LIMIT ?)",
        (row[0], _PURGED_AT_ONCE),
    ).rowcount
    if deleted < _PURGED_AT_ONCE:
        connection.execute("DELETE FROM memory_session WHERE id = ?", row)
    return True


def sessions(connection: sqlite3.Connection) -> list[SessionCount]:
    """Every session of every tenant, by name."""
    rows = connection.execute(
        "SELECT tenant, name, notes, exchanges, created_us FROM memory_session WHERE name IS NOT NULL ORDER BY tenant, name"
    )
    return [SessionCount(*row) for row in rows]


def _session(connection: sqlite3.Connection, tenant: str, session: str) -> int:
    number = session_number(connection, tenant, session)
    if number is not None:
        return number
    cursor = connection.execute(
        "INSERT INTO memory_session (tenant, name, created_us) VALUES (?, ?, ?)", (tenant, session, now_us())
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _make_room(connection: sqlite3.Connection, session: int, max_entries: int) -> bool:
    """Evict the oldest exchanges until one more entry has a place; False when notes alone fill the session.

    A session that is far over, because the limit was lowered, shrinks by and by.
    """
    note_count, exchanges = connection.execute(
        "SELECT notes, exchanges FROM memory_session WHERE id = ?", (session,)
    ).fetchone()
    over = note_count + exchanges + 1 - max_entries
    if over > 0:
        connection.execute(
            """
            DELETE FROM memory_entry WHERE id IN (
                SELECT id FROM memory_entry WHERE session = ? AND kind = 'exchange' ORDER BY id LIMIT ?
            )
            """,
            (session, min(over, _EVICTED_AT_ONCE)),
        )
    return bool(note_count < max_entries)


def _insert(
    connection: sqlite3.Connection,
    session: int,
    kind: str,
    text: str,
    answer: str | None,
    found: Sequence[str],
) -> Entry:
    row = connection.execute(
        f"""
        INSERT INTO memory_entry (key, session, number, kind, created_us, text, answer, words)
        SELECT ?, id, added + 1, ?, ?, ?, ?, ? FROM memory_session WHERE id = ? RETURNING {_COLUMNS}
        """,
        (secrets.randbits(63), kind, now_us(), text, answer, "".join(f" {word}" for word in found), session),
    ).fetchone()
    return Entry(*row)
