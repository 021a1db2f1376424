"""What each room keeps in the store: its tables as ordered steps, and what must always be true of them.

A step, once released, never changes: what is wrong with it is put right by another one after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.store.clock import now_us

APPLICATION_ID = 0x53745274
"""``StRt``: what SQLite's header says of our files (https://sqlite.org/pragma.html#pragma_application_id)."""

FORMAT = 1
"""Version of what is here, as ``user_version``; each room's own version is the number of its steps."""

_LEDGER_OF_STEPS = """
    CREATE TABLE store_step (
        room TEXT NOT NULL,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        applied_us INTEGER NOT NULL,
        PRIMARY KEY (room, position)
    ) STRICT, WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a room's tables.

    Attributes:
        name: unique within its room; kept in the file.
        change: SQL statements, one a string, or a function of the connection for what SQL alone cannot do. It runs inside a
            transaction, with foreign keys checked at its end, and must not begin or end one.
    """

    name: str
    change: Sequence[str] | Callable[[sqlite3.Connection], None]

    def __post_init__(self) -> None:
        if isinstance(self.change, str):
            raise TypeError("a step is a sequence of statements, not one string")


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is always true of a room's rows. ``find`` gets a read-only connection and returns what is wrong, in words."""

    name: str
    find: Callable[[sqlite3.Connection], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Schema:
    """A room's tables. Tables are named after their room (``memory_entry``), and are STRICT.

    Attributes:
        room: its name.
        steps: in the order in which they are applied.
        checks: for ``stretto db check``, besides SQLite's own.
        upkeep: statements that make the tables smaller; run by ``stretto db vacuum``.
    """

    room: str
    steps: tuple[Step, ...]
    checks: tuple[Check, ...] = ()
    upkeep: tuple[str, ...] = ()


def applied_steps(connection: sqlite3.Connection) -> Mapping[str, Sequence[str]]:
    """Names of the steps a file has had, by room, in order; nothing for a file that is still empty."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'store_step'").fetchone():
        return {}
    found: dict[str, list[str]] = {}
    for room, name in connection.execute("SELECT room, name FROM store_step ORDER BY room, position"):
        found.setdefault(room, []).append(name)
    return found


def unknown_step(connection: sqlite3.Connection, schemas: Sequence[Schema]) -> str | None:
    """The first step of a file that ``schemas`` do not have at its place, as ``room/step``, or None when they know them all."""
    known = {schema.room: [step.name for step in schema.steps] for schema in schemas}
    for room, names in applied_steps(connection).items():
        for position, name in enumerate(names):
            if known.get(room, [])[position : position + 1] != [name]:
                return f"{room}/{name}"
    return None


def migrate(connection: sqlite3.Connection, schemas: Sequence[Schema]) -> int:
    """Apply the steps that a file has not had: all of them, or none when one fails.

    Returns:
        How many there were.

    Raises:
        sqlite3.Error: a step cannot be applied, or leaves a row whose foreign key points nowhere.
    """
    connection.execute("PRAGMA foreign_keys = OFF")  # a step may build a table anew; cannot be changed inside
    connection.execute("BEGIN IMMEDIATE")
    try:
        count = _apply(connection, schemas)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.execute("PRAGMA foreign_keys = ON")
    return count


def _apply(connection: sqlite3.Connection, schemas: Sequence[Schema]) -> int:
    if not applied_steps(connection) and connection.execute("PRAGMA user_version").fetchone() == (0,):
        connection.execute(_LEDGER_OF_STEPS)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    applied = applied_steps(connection)
    count = 0
    for schema in schemas:
        done = len(applied.get(schema.room, ()))
        for position, step in enumerate(schema.steps[done:], start=done):
            if callable(step.change):
                step.change(connection)
            else:
                for statement in step.change:
                    connection.execute(statement)
            connection.execute(
                "INSERT INTO store_step (room, position, name, applied_us) VALUES (?, ?, ?, ?)",
                (schema.room, position, step.name, now_us()),
            )
            count += 1
    if count and (broken := connection.execute("PRAGMA foreign_key_check").fetchone()):
        raise sqlite3.IntegrityError(f"a row of {broken[0]} points to a row of {broken[2]} that is not there")
    return count
