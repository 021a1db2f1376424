"""The tables of session memory."""

from __future__ import annotations

import sqlite3

from stretto.store import Check, Schema, Step

# ``added`` counts the entries that a session ever had, and so numbers them.
# A session that is being forgotten has no name any more, so nobody can reach it, and is deleted piece by piece.
_SESSION = """
    CREATE TABLE memory_session (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT,
        name TEXT,
        created_us INTEGER NOT NULL,
        added INTEGER NOT NULL DEFAULT 0,
        notes INTEGER NOT NULL DEFAULT 0,
        exchanges INTEGER NOT NULL DEFAULT 0,
        UNIQUE (tenant, name),
        CHECK ((tenant IS NULL) = (name IS NULL))
    ) STRICT
"""
_ENTRY = """
    CREATE TABLE memory_entry (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key INTEGER NOT NULL UNIQUE,
        session INTEGER NOT NULL REFERENCES memory_session (id),
        number INTEGER NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('note', 'exchange')),
        created_us INTEGER NOT NULL,
        text TEXT NOT NULL,
        answer TEXT,
        words TEXT NOT NULL,
        CHECK ((kind = 'note') = (answer IS NULL))
    ) STRICT
"""
# The words that are indexed carry the number of their session, so that each session is an index of its own: what others
# remember changes neither what is found nor how long it takes. ``z`` ends the number, which is hexadecimal.
_SCOPED = "replace({0}.words, ' ', ' ' || printf('%xz', {0}.session))"
_WORDS = f"CREATE VIEW memory_words AS SELECT id, {_SCOPED.format('memory_entry')} AS words FROM memory_entry"
# ``ascii`` takes every character beyond ASCII for a part of a word: the words are already made, nothing is to be done to them.
# The index says which entries have a word; how often is counted in the few entries that come into question.
_INDEX = """
    CREATE VIRTUAL TABLE memory_index USING fts5 (
        words, content = 'memory_words', content_rowid = 'id', tokenize = 'ascii', detail = 'none'
    )
"""
_ADDED = f"""
    CREATE TRIGGER memory_entry_added AFTER INSERT ON memory_entry BEGIN
        UPDATE memory_session
            SET added = added + 1, notes = notes + (new.kind = 'note'), exchanges = exchanges + (new.kind = 'exchange')
            WHERE id = new.session;
        INSERT INTO memory_index (rowid, words) VALUES (new.id, {_SCOPED.format("new")});
    END
"""
_DELETED = f"""
    CREATE TRIGGER memory_entry_deleted AFTER DELETE ON memory_entry BEGIN
        UPDATE memory_session
            SET notes = notes - (old.kind = 'note'), exchanges = exchanges - (old.kind = 'exchange')
            WHERE id = old.session;
        INSERT INTO memory_index (memory_index, rowid, words) VALUES ('delete', old.id, {_SCOPED.format("old")});
    END
"""

_VECTOR = """
    CREATE TABLE memory_vector (
        session INTEGER NOT NULL,
        entry INTEGER NOT NULL,
        model INTEGER NOT NULL,
        vector BLOB NOT NULL,
        PRIMARY KEY (session, entry)
    ) STRICT, WITHOUT ROWID
"""
_VECTOR_DELETED = """
    CREATE TRIGGER memory_vector_deleted AFTER DELETE ON memory_entry BEGIN
        DELETE FROM memory_vector WHERE session = old.session AND entry = old.id;
    END
"""


def scoped(session: int, word: str) -> str:
    """A word as it is indexed for a session."""
    return f"{session:x}z{word}"


def _counts(connection: sqlite3.Connection) -> list[str]:
    wrong = connection.execute(
        """
        SELECT id FROM memory_session WHERE
            notes != (SELECT count(*) FROM memory_entry WHERE session = memory_session.id AND kind = 'note') OR
            exchanges != (SELECT count(*) FROM memory_entry WHERE session = memory_session.id AND kind = 'exchange')
        """
    )
    return [f"session {number} counts its entries wrong" for (number,) in wrong]


def _indexed(connection: sqlite3.Connection) -> list[str]:
    (missing,) = connection.execute(
        """
        SELECT count(*) FROM (
            SELECT id FROM memory_entry EXCEPT SELECT id FROM memory_index_docsize
            UNION ALL
            SELECT id FROM memory_index_docsize EXCEPT SELECT id FROM memory_entry
        )
        """
    ).fetchone()
    return [f"{missing} entries are in the index or in the table alone"] if missing else []


def _orphans(connection: sqlite3.Connection) -> list[str]:
    (orphans,) = connection.execute(
        "SELECT count(*) FROM (SELECT entry FROM memory_vector EXCEPT SELECT id FROM memory_entry)"
    ).fetchone()
    return [f"{orphans} vectors belong to no entry"] if orphans else []


SCHEMA = Schema(
    "memory",
    (
        Step(
            "tables",
            (
                _SESSION,
                _ENTRY,
                "CREATE INDEX memory_entry_order ON memory_entry (session, kind, id)",
                _WORDS,
                _INDEX,
                _ADDED,
                _DELETED,
            ),
        ),
        Step("vectors", (_VECTOR, _VECTOR_DELETED)),
    ),
    checks=(Check("counts", _counts), Check("index", _indexed), Check("vectors", _orphans)),
    upkeep=("INSERT INTO memory_index (memory_index) VALUES ('optimize')",),
)
