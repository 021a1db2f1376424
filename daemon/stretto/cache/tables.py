"""The tables of the answer cache."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from stretto.store import Check, Schema, Step

_STATE = """
    CREATE TABLE cache_state (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        fingerprint TEXT NOT NULL
    ) STRICT
"""
# ``vector`` is little-endian float32; NULL for a question that is only found word by word.
_ANSWER = """
    CREATE TABLE cache_answer (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT NOT NULL,
        session TEXT,
        exact BLOB NOT NULL UNIQUE CHECK (length(exact) = 32),
        context BLOB NOT NULL CHECK (length(context) = 32),
        created_us INTEGER NOT NULL,
        question TEXT NOT NULL,
        answer TEXT NOT NULL CHECK (answer <> ''),
        stop_string TEXT,
        prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
        completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
        cached_tokens INTEGER NOT NULL CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
        vector BLOB
    ) STRICT
"""
_OF_TENANT = "CREATE INDEX cache_answer_tenant ON cache_answer (tenant, session)"


def _vectors_alike(connection: sqlite3.Connection) -> Sequence[str]:
    lengths = connection.execute(
        "SELECT DISTINCT length(vector) FROM cache_answer WHERE vector IS NOT NULL"
    ).fetchall()
    if len(lengths) > 1 or any(length % 4 for (length,) in lengths):
        return [f"cache_answer has vectors of {', '.join(str(length) for (length,) in lengths)} bytes"]
    return []


def _has_fingerprint(connection: sqlite3.Connection) -> Sequence[str]:
    (answers,) = connection.execute("SELECT count(*) FROM cache_answer").fetchone()
    (states,) = connection.execute("SELECT count(*) FROM cache_state").fetchone()
    return (
        ["cache_answer has rows, and cache_state does not say what made them"]
        if answers and not states
        else []
    )


SCHEMA = Schema(
    room="cache",
    steps=(Step("answers", (_STATE, _ANSWER, _OF_TENANT)),),
    checks=(Check("vectors_alike", _vectors_alike), Check("has_fingerprint", _has_fingerprint)),
)
"""Answers and the questions they were given to. Only those of the fingerprint in ``cache_state`` are kept."""
