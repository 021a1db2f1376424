"""Recall by meaning as well as by words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from stretto.memory import SCHEMA, Entry, Meaning, SessionMemory, entries, meaning
from stretto.memory.meaning import Float32Array, Vector, alternate, nearest
from stretto.store import Store, check

ME = ("", "default")
TOPICS = {"dog": 0, "hound": 0, "puppy": 0, "car": 1, "automobile": 1, "rain": 2, "weather": 2}
"""Words that mean the same lie in the same direction; all else lies in none of these."""


async def by_topic(text: str) -> Float32Array | None:
    values = np.zeros(8, dtype=np.float32)
    for word in text.lower().split():
        values[TOPICS.get(word.strip(".?!"), 7)] += 1 if word.strip(".?!") in TOPICS else 0.1
    return values


async def never(text: str) -> Float32Array | None:
    return None


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await Store.open(tmp_path / "stretto.db", [SCHEMA]) as opened:
        yield opened
        report = check(opened.path, [SCHEMA])
    assert report.problems == ()


def memory_of(store: Store, found_by: Meaning | None, **limits: int) -> SessionMemory:
    return SessionMemory(store, **{"top_k": 4, "max_entries": 100, **limits}, meaning=found_by)


async def recalled(memory: SessionMemory, asked: str, present: Sequence[str] = ()) -> list[str]:
    found = await memory.recall(*ME, asked, present)
    return [] if found is None else [entry.text for entry in reversed(found.exchanges)]


async def vectors(store: Store) -> int:
    return int(await store.read(lambda c: c.execute("SELECT count(*) FROM memory_vector").fetchone()[0]))


async def test_other_words_for_the_same_are_found(store: Store) -> None:
    memory = memory_of(store, Meaning(1, by_topic))
    await memory.record(*ME, "Our puppy sleeps", "How sweet.")
    await memory.record(*ME, "Much rain here", "Take care.")
    assert await recalled(memory, "Which hound barks?") == ["Our puppy sleeps"]
    assert await recalled(memory_of(store, None), "Which hound barks?") == []
    assert await recalled(memory, "Nothing alike") == []
    assert await recalled(memory, "Which hound barks?", ["Our puppy sleeps"]) == []
    assert await recalled(memory, "   ") == []
    assert memory.stats()["recalls_by"] == "words and meaning"


async def test_meaning_and_words_take_turns(store: Store) -> None:
    memory = memory_of(store, Meaning(1, by_topic), top_k=2)
    await memory.record(*ME, "My automobile is red", "Nice.")
    await memory.record(*ME, "The puppy has a collar", "Nice.")
    await memory.record(*ME, "A collar for the hound", "Nice.")
    assert await recalled(memory, "dog red") == ["A collar for the hound", "My automobile is red"]


async def test_what_cannot_be_embedded_is_remembered_all_the_same(store: Store) -> None:
    memory = memory_of(store, Meaning(1, never))
    await memory.record(*ME, "Our puppy sleeps", "How sweet.")
    assert await vectors(store) == 0
    assert await recalled(memory, "puppy") == ["Our puppy sleeps"]


async def test_vectors_of_another_model_are_not_compared(store: Store) -> None:
    await memory_of(store, Meaning(1, by_topic)).record(*ME, "Our puppy sleeps", "How sweet.")
    assert await recalled(memory_of(store, Meaning(2, by_topic)), "hound") == []


async def test_a_vector_goes_with_its_entry(store: Store) -> None:
    memory = memory_of(store, Meaning(1, by_topic), max_entries=3)
    for number in range(5):
        await memory.record(*ME, f"Puppy {number}", "Yes.")
    assert await vectors(store) == 3
    (oldest, *_) = await memory.page(*ME)
    await memory.forget(*ME, oldest.id)
    assert await vectors(store) == 2
    await memory.forget_all(*ME)
    assert await vectors(store) == 0


async def test_sessions_and_tenants_are_apart(store: Store) -> None:
    memory = memory_of(store, Meaning(1, by_topic))
    await memory.record("", "other", "Our puppy sleeps", "How sweet.")
    await memory.record("somebody", "default", "Our puppy eats", "How sweet.")
    assert await recalled(memory, "hound") == []


async def test_nearest_is_as_exact_cosines_say(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    made = draw.standard_normal((300, 384)).astype(np.float32)
    asked = made[7] + 0.9 * draw.standard_normal(384).astype(np.float32)

    def fill(connection: object) -> None:
        for number, row in enumerate(made):
            entries.add_exchange(connection, *ME, str(number), "yes", 1000, Vector(1, row))  # type: ignore[arg-type]

    await store.write(fill)
    exact = made.astype(np.float64) @ asked / (np.linalg.norm(made, axis=1) * np.linalg.norm(asked))
    monkeypatch.setattr(meaning, "LEAST_COSINE", 0.05)
    found = await store.read(lambda connection: nearest(connection, 1, Vector(1, asked), (), 10))
    expected = [str(at) for at in np.argsort(-exact)[:10] if exact[at] > 0.05]
    assert found[0].text == "7"
    # Neighbours closer than the rounding may change places.
    for entry, wanted in zip(found, expected, strict=True):
        assert abs(exact[int(entry.text)] - exact[int(wanted)]) < 0.005


def test_rankings_take_turns() -> None:
    def entry(key: int, text: str | None = None) -> Entry:
        return Entry(key, "exchange", 0, text or str(key), "yes")

    one, two, three, four = map(entry, range(1, 5))
    assert alternate(([one, two, three], [three, four]), 4) == [one, three, two, four]
    assert alternate(([one, two], []), 1) == [one]
    assert alternate(([], []), 4) == []
    assert alternate(([one, two], [entry(5, "1")]), 4) == [one, two]
