"""The forward pass against transformers, and what it promises of batches."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from stretto.embedding import EmbeddingModel
from stretto.embedding.encoder import gelu
from support.embedding_tiny import WORDS, tiny_embedder


def random_sequences(seed: int, lengths: list[int], vocab: int = len(WORDS)) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[int(token) for token in rng.integers(0, vocab, size=length)] for length in lengths]


def test_gelu_is_the_exact_one() -> None:
    x = np.concatenate([np.linspace(-12, 12, 40_001), [0.0, -0.0, 1e-30, -1e10, 1e10]]).astype(np.float32)
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])
    got = gelu(x.copy())
    assert np.abs(got[:-2] - exact[:-2]).max() < 5e-7
    assert got[-2] == 0
    assert got[-1] == np.float32(1e10)


def test_gelu_works_on_matrices_longer_than_its_stretch() -> None:
    x = np.random.default_rng(1).standard_normal((300, 128)).astype(np.float32)
    parts = np.concatenate([gelu(row.copy()[None]) for row in x])
    assert np.array_equal(gelu(x), parts)


@pytest.mark.torch
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_ragged_batch_equals_transformers(tmp_path: Path, pooling: str) -> None:
    from support.embedding_reference import reference_vectors

    directory = tiny_embedder(tmp_path / "model", pooling=pooling, max_tokens=None)
    sequences = random_sequences(3, [5, 1, 24, 5, 2, 17, 24, 3, 5])
    got = EmbeddingModel(directory).forward(sequences)
    wanted = reference_vectors(directory, sequences, pooling=pooling)
    assert got.dtype == np.float32
    assert np.abs(got - wanted).max() < 2e-6


def test_a_vector_does_not_depend_on_its_company(tmp_path: Path) -> None:
    model = EmbeddingModel(tiny_embedder(tmp_path / "model"))
    sequences = random_sequences(4, [3, 9, 3, 16, 1, 9])
    together = model.forward(sequences)
    for sequence, vector in zip(sequences, together, strict=True):
        assert np.abs(model.forward([sequence])[0] - vector).max() < 1e-6
    assert np.allclose(np.linalg.norm(together, axis=1), 1)


@pytest.mark.torch
@pytest.mark.real_model
def test_the_real_model_equals_transformers(minilm_path: Path) -> None:
    from transformers import AutoTokenizer

    from support.embedding_reference import reference_vectors

    texts = [
        "How do I close my account?",
        "Ünïcödé, naïve café — 東京 and emoji 🙂",
        "x",
        "",
        "The quick brown fox jumps over the lazy dog. " * 12,
        "def f(a, b):\n    return a[b] ** 2",
    ]
    tokenizer = AutoTokenizer.from_pretrained(minilm_path)
    model = EmbeddingModel(minilm_path)
    ids = model.encode(texts)
    assert ids == [tokenizer(text)["input_ids"] for text in texts]
    sequences = [*ids, [101, *random_sequences(5, [510], 30522)[0], 102]]
    got = model.forward(sequences).astype(np.float64)
    wanted = reference_vectors(minilm_path, sequences)
    assert np.abs(got - wanted).max() < 2e-6
    assert (1 - (got * wanted).sum(axis=1)).max() < 1e-6
