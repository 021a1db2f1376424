"""The labelled pairs: what must never be taken for the same is not, and enough of what is, is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.cache import CacheConfig
from stretto.cache.gate import compare
from support.cache_pairs import KINDS, PAIRS_PATH, Pair, load_pairs

NEVER = ("opposite", "number", "name", "negation", "unrelated")


def test_the_set_is_large_and_sound() -> None:
    pairs = load_pairs()
    assert len(pairs) > 500
    assert {pair.kind for pair in pairs} == set(KINDS)
    assert len({(pair.first, pair.second) for pair in pairs}) == len(pairs)
    assert sum(pair.same for pair in pairs) > 150
    for kind in ("opposite", "number", "name"):
        assert sum(pair.kind == kind for pair in pairs) > 50
    assert (
        PAIRS_PATH.read_text(encoding="utf-8").isprintable() is False
    )  # tabs and lines, and nothing stranger


@pytest.mark.parametrize(
    "pair", [pair for pair in load_pairs() if pair.kind in NEVER], ids=lambda pair: pair.second
)
def test_what_turns_the_meaning_round_never_passes_the_gate(pair: Pair) -> None:
    assert compare(pair.first, pair.second) is not None


@pytest.mark.parametrize("part", ["tune", "held", "check"])
def test_paraphrases_pass_the_gate_more_often_than_not(part: str) -> None:
    same = [pair for pair in load_pairs() if pair.part == part and pair.same]
    passed = [pair for pair in same if compare(pair.first, pair.second) is None]
    assert len(passed) / len(same) > 0.7


@pytest.mark.real_model
def test_hits_at_the_default_threshold(minilm_path: Path) -> None:
    from stretto.embedding import EmbeddingModel

    pairs = load_pairs()
    passed = [pair for pair in pairs if compare(pair.first, pair.second) is None]  # no others can be hits
    model = EmbeddingModel(minilm_path)
    texts = sorted({text for pair in passed for text in (pair.first, pair.second)})
    ids = model.encode(texts)
    vectors = {}
    for start in range(0, len(texts), 64):
        for text, vector in zip(
            texts[start : start + 64], model.forward(ids[start : start + 64]), strict=True
        ):
            vectors[text] = vector
    hits = [pair for pair in passed if vectors[pair.first] @ vectors[pair.second] >= CacheConfig().threshold]
    assert not [pair for pair in hits if pair.kind in NEVER]
    right = sum(pair.same for pair in hits)
    assert right / len(hits) > 0.98
    assert right / sum(pair.same for pair in pairs) > 0.72
