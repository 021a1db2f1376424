"""Finding the exchanges that have to do with a text: BM25 over the words they share with it.

BM25 as in Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009), with k1 = 1.2 and b = 0.75. The full-text index (FTS5) tells
which exchanges have a word; numbers of exchanges and lengths are those of the session alone.
"""

from __future__ import annotations

import heapq
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence

from stretto.memory.entry import TURN_CHARS, Entry
from stretto.memory.tables import scoped
from stretto.memory.words import words

K1 = 1.2
B = 0.75

_MOST_WORDS = 24
_MOST_SOUGHT = 12
_MOST_POSTINGS = 200
_MOST_CANDIDATES = 32


def too_common(holders: float, exchanges: int) -> bool:
    """Whether a word tells nothing because so many of a session's exchanges have it: more than a fifth, and more than a few."""
    return holders > max(8, exchanges // 5)


def query_words(text: str) -> list[str]:
    """The distinct words of what is asked. Of a long text those of its beginning and its end, where questions stand."""
    if len(text) > 2 * TURN_CHARS:
        text = f"{text[:TURN_CHARS]}\n{text[-TURN_CHARS:]}"
    distinct = list(dict.fromkeys(words(text)))
    if len(distinct) > _MOST_WORDS:
        half = _MOST_WORDS // 2
        distinct = distinct[:half] + distinct[-half:]
    return distinct


def search(
    connection: sqlite3.Connection, session: int, asked: str, present: Collection[str], limit: int
) -> list[Entry]:
    """The exchanges of a session that are most relevant to ``asked``, best first; of equals the newest.

    Exchanges that share no word with it, or only words too common in the session, are none of them.

    Args:
        session: the session's row.
        asked: the new user message.
        present: user messages that the conversation has anyway, cut to ``TURN_CHARS``: their exchanges are left out.
        limit: most entries to return.
    """
    exchanges, added, first = connection.execute(
        """
        SELECT exchanges, added, (
            SELECT number FROM memory_entry
            WHERE session = memory_session.id AND kind = 'exchange' ORDER BY id LIMIT 1
        ) FROM memory_session WHERE id = ?
        """,
        (session,),
    ).fetchone()
    if limit < 1 or exchanges < 1:
        return []
    found = _postings(connection, session, query_words(asked))
    holders = {word: _holders(connection, ids, first, added) for word, ids in found.items()}
    telling = [word for word in found if not too_common(holders[word], exchanges)]
    rarest = sorted(telling, key=lambda word: holders[word])[:_MOST_SOUGHT]
    weights = {
        word: math.log1p((max(0.0, exchanges - holders[word]) + 0.5) / (holders[word] + 0.5))
        for word in rarest
    }
    candidates = _candidates({word: found[word] for word in rarest}, weights)
    rows = connection.execute(
        f"""
        SELECT id, words, key, kind, created_us, text, answer FROM memory_entry
        WHERE id IN ({",".join("?" * len(candidates))})
        """,
        candidates,
    ).fetchall()
    lengths = {row[0]: row[1].count(" ") for row in rows}
    mean = sum(lengths.values()) / max(1, len(lengths))
    ranked = sorted(
        ((_score(row[1], lengths[row[0]] / mean, weights), row[0], Entry(*row[2:])) for row in rows),
        key=lambda found: found[:2],
        reverse=True,
    )
    told = set(present)
    best: list[Entry] = []
    for _, _, entry in ranked:
        if entry.text not in told:  # asked twice, it is recalled once
            told.add(entry.text)
            best.append(entry)
    return best[:limit]


def _postings(connection: sqlite3.Connection, session: int, asked: Sequence[str]) -> dict[str, list[int]]:
    """The exchanges that have each word, newest first; of a word that very many have, the newest alone: the work is bounded."""
    found: dict[str, list[int]] = {}
    for word in asked:
        rows = connection.execute(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ? ORDER BY rowid DESC LIMIT ?",
            (f'"{scoped(session, word)}"', _MOST_POSTINGS),
        ).fetchall()
        if rows:
            found[word] = [row[0] for row in rows]
    return found


def _holders(connection: sqlite3.Connection, ids: Sequence[int], first: int, last: int) -> float:
    """How many exchanges have a word, whose newest are ``ids``; where those are not all, by how close together they stand.

    ``first`` and ``last`` are numbers of entries of the session, the first exchange's and the newest's.
    """
    if len(ids) < _MOST_POSTINGS:
        return len(ids)
    (oldest,) = connection.execute("SELECT number FROM memory_entry WHERE id = ?", (ids[-1],)).fetchone()
    return float(len(ids) * (last - first + 1) / (last - oldest + 1))


def _candidates(postings: Mapping[str, Sequence[int]], weights: Mapping[str, float]) -> list[int]:
    """The exchanges whose words weigh most; of equals the newest."""
    sums: dict[int, float] = {}
    for word, ids in postings.items():
        weight = weights[word]
        for number in ids:
            sums[number] = sums.get(number, 0.0) + weight
    best = heapq.nlargest(_MOST_CANDIDATES, ((weight, number) for number, weight in sums.items()))
    return [number for _, number in best]


def _score(text: str, length: float, weights: Mapping[str, float]) -> float:
    """BM25 of an exchange's words (each after a space), whose length is given as a multiple of the mean."""
    there = text.split()
    damping = K1 * (1 - B + B * length)
    score = 0.0
    for word, weight in weights.items():
        count = there.count(word)
        if count:
            score += weight * count * (K1 + 1) / (count + damping)
    return score
