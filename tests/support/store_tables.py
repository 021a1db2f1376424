"""Tables for tests of the store, and ways to break its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from stretto.store import Check, Schema, Step


def no_negative(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT id FROM thing WHERE amount < 0")
    return [f"thing {number} is negative" for (number,) in rows]


THINGS = Schema(
    "things",
    (
        Step(
            "tables",
            (
                "CREATE TABLE thing (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, amount INTEGER NOT NULL, data BLOB) STRICT",
            ),
        ),
    ),
    (Check("amounts", no_negative),),
)
PARTS = Schema(
    "parts",
    (
        Step(
            "tables",
            (
                "CREATE TABLE part (id INTEGER PRIMARY KEY, thing INTEGER NOT NULL REFERENCES thing (id)) STRICT",
            ),
        ),
    ),
)
SCHEMAS = (THINGS, PARTS)


def add(name: str, amount: int = 0, data: bytes | None = None) -> Callable[[sqlite3.Connection], int]:
    """A closure that adds a thing and returns its id."""

    def run(connection: sqlite3.Connection) -> int:
        cursor = connection.execute(
            "INSERT INTO thing (name, amount, data) VALUES (?, ?, ?)", (name, amount, data)
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    return run


def names(connection: sqlite3.Connection) -> list[str]:
    """All things, in the order in which they were added."""
    return [name for (name,) in connection.execute("SELECT name FROM thing ORDER BY id")]


def contents(directory: Path) -> dict[str, bytes]:
    """What a refusal must leave as it is: every file of a directory that has something in it, but SQLite's shared memory."""
    files = {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith("-shm")}
    return {name: data for name, data in files.items() if data}
