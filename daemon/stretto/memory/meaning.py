"""Finding the exchanges whose question means something like a text: the cosine of vectors that a model made of both.

Vectors are kept in 8 bits a dimension: of unit vectors of 384 dimensions that moves a cosine by some thousandths.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stretto.memory.entry import Entry

Float32Array = npt.NDArray[np.float32]

LEAST_COSINE = 0.35
"""What is further from the question is not recalled for its meaning."""

MOST_VECTORS = 10_000
"""Exchanges of a session, the newest, that are compared: the work of a recall is bounded."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Makes vectors.

    Attributes:
        model: a number for the model; vectors of others are not compared with its own.
        embed: the vector of a text, float32 [dimensions]; None when it cannot be made, for which nothing fails.
    """

    model: int
    embed: Callable[[str], Awaitable[Float32Array | None]]


@dataclass(frozen=True, slots=True)
class Vector:
    """A text's vector, float32 [dimensions] of any length but 0, and the number of the model that made it."""

    model: int
    values: Float32Array

    def packed(self) -> bytes:
        """int8 [dimensions]; of cosines the scale makes no part."""
        steps = np.rint(self.values * (127 / np.abs(self.values).max()))
        return bytes(steps.astype(np.int8))


def keep(connection: sqlite3.Connection, key: int, vector: Vector) -> None:
    """Keep an entry's vector beside it."""
    connection.execute(
        "INSERT INTO memory_vector (session, entry, model, vector) SELECT session, id, ?, ? FROM memory_entry WHERE key = ?",
        (vector.model, vector.packed(), key),
    )


def nearest(
    connection: sqlite3.Connection, session: int, asked: Vector, present: Collection[str], limit: int
) -> list[Entry]:
    """The exchanges of a session whose question is nearest to ``asked``, nearest first; none below ``LEAST_COSINE``.

    Args:
        session: the session's row.
        present: user messages that the conversation has anyway: their exchanges are left out.
        limit: most entries to return.
    """
    rows = connection.execute(
        "SELECT entry, vector FROM memory_vector WHERE session = ? AND model = ? AND length(vector) = ? ORDER BY entry DESC LIMIT ?",
        (session, asked.model, len(asked.values), MOST_VECTORS),
    ).fetchall()
    if not rows or limit < 1:
        return []
    matrix = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.int8).reshape(len(rows), -1)
    kept = matrix.astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", kept, kept)) * np.float32(np.linalg.norm(asked.values))
    cosines = kept @ asked.values / np.maximum(lengths, np.float32(1e-12))
    best = [int(at) for at in np.argsort(-cosines, kind="stable")[: 2 * limit] if cosines[at] >= LEAST_COSINE]
    ids = [rows[at][0] for at in best]
    found = connection.execute(
        f"SELECT id, key, kind, created_us, text, answer FROM memory_entry WHERE id IN ({','.join('?' * len(ids))})",
        ids,
    )
    entries = {row[0]: Entry(*row[1:]) for row in found}
    return [entries[number] for number in ids if entries[number].text not in present][:limit]


def alternate(rankings: Sequence[Sequence[Entry]], limit: int) -> list[Entry]:
    """One ranking of several, best first, by turns; of the same question asked twice one remains.

    Reciprocal rank fusion does worse here: a word that is shared by chance stands first among the words' finds, and weighs as much as what
    means the very same (``benchmarks/memory_recall.py``).
    """
    merged: dict[str, Entry] = {}
    for rank in itertools.zip_longest(*rankings):
        for entry in rank:
            if entry is not None:
                merged.setdefault(entry.text, entry)
    return list(merged.values())[:limit]
