"""The index in memory against a plain computation of the same."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.cache.index import CacheIndex
from stretto.cache.rows import StoredKey

WIDTH = 8


def key(row_id: int, context: str, exact: str, vector: np.ndarray | None = None) -> StoredKey:
    def digest(text: str) -> bytes:
        return hashlib.sha256(text.encode()).digest()

    data = None if vector is None else vector.astype("<f4").tobytes()
    return StoredKey(row_id, "", None, digest(exact), digest(context), row_id, 1, data)


def unit(seed: int) -> np.ndarray:
    vector = np.random.default_rng(seed).standard_normal(WIDTH)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans(), st.booleans()), max_size=60),
    st.floats(-1, 1),
)
def test_it_finds_what_is_there(steps: list[tuple[str, int, bool, bool]], threshold: float) -> None:
    index = CacheIndex(WIDTH)
    model: dict[int, tuple[str, str, np.ndarray | None]] = {}
    for row_id, (context, number, with_vector, remove) in enumerate(steps, start=1):
        exact = f"{context}{number}"
        if remove and model:
            gone = sorted(model)[number % len(model)]
            index.remove(gone)
            del model[gone]
            continue
        vector = unit(row_id) if with_vector else None
        for old in [old for old, (_, text, _) in model.items() if text == exact]:
            del model[old]
        model[row_id] = (context, exact, vector)
        index.add(key(row_id, context, exact, vector))
    assert len(index) == len(model)
    assert index.oldest(3) == sorted(model)[:3]
    query = unit(999)
    for context in "abc":
        near = index.near(
            key(0, context, "").context,
            query,
            threshold=threshold,
            allowed=lambda row: row.id % 3 != 0,
            limit=4,
        )
        wanted = sorted(
            (
                (-float(vector @ query), row_id)
                for row_id, (where, _, vector) in model.items()
                if where == context
                and vector is not None
                and row_id % 3
                and float(vector @ query) >= threshold
            )
        )[:4]
        assert np.allclose(
            [-similarity for similarity, _ in wanted], [found.similarity for found in near], atol=1e-5
        )
        assert {found.id for found in near} == {row_id for _, row_id in wanted}
    for row_id, (context, exact, _) in model.items():
        found = index.exact(key(0, context, exact).exact)
        assert found is not None
        assert found.id == row_id


def test_vectors_of_another_width_are_passed_over() -> None:
    index = CacheIndex(WIDTH)
    index.add(key(1, "a", "x", np.ones(WIDTH + 1, dtype=np.float32)))
    assert index.near(key(0, "a", "").context, unit(1), threshold=-1, allowed=lambda row: True, limit=5) == []
    assert index.stats()["semantic_entries"] == 0
    index.remove(1)
    assert len(index) == 0
