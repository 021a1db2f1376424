"""Logits of tiny random checkpoints against ``transformers`` in float32: every family, shape and way to run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.backend_driver import Driver  # noqa: E402
from support.torch_runs import loaded, reference_logits, reference_of_directory  # noqa: E402
from support.weights_tiny import TinyShape, tiny_hf  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = 1e-4
TOKENS = 61

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-untied-base": {"tied": False, "rope_base": 500_000.0},
    "llama-one-kv-head": {"shape": TinyShape(heads=4, kv_heads=1)},
    "llama-no-sharing": {"shape": TinyShape(heads=4, kv_heads=4)},
    "llama-wide-heads": {"shape": TinyShape(hidden=96, heads=6, kv_heads=3, head_size=32, layers=3)},
    "llama-odd-sizes": {"shape": TinyShape(hidden=36, heads=3, kv_heads=1, head_size=6, ffn=50, layers=1)},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama-llama3": {"rope_scaling": LLAMA3},
    "llama-yarn": {"rope_scaling": YARN},
    "llama-bfloat16-file": {"dtype": "bfloat16"},
    "llama-float16-file": {"dtype": "float16"},
    "mistral": {"family": "mistral"},
    "qwen2": {"family": "qwen2"},
    "qwen2-untied-yarn": {"family": "qwen2", "tied": False, "rope_scaling": YARN},
    "qwen3": {"family": "qwen3"},
    "qwen3-wide-heads": {"family": "qwen3", "shape": TinyShape(heads=8, kv_heads=2, head_size=24)},
}

MakeModel = Callable[[str], tuple[Path, list[int], Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Make a model once: its directory, tokens to run, and the reference's logits for them."""
    known: dict[str, tuple[Path, list[int], Any]] = {}

    def make(name: str) -> tuple[Path, list[int], Any]:
        if name not in known:
            path = tiny_hf(tmp_path_factory.mktemp(name), seed=len(known), **MODELS[name])
            model = reference_of_directory(path)
            tokens = np.random.default_rng(7).integers(0, model.config.vocab_size, TOKENS).tolist()
            known[name] = path, tokens, reference_logits(model, tokens)
        return known[name]

    return make


def assert_close(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape
    assert float(np.abs(found - wanted).max()) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_whole_and_in_odd_chunks_over_runs_and_shuffled_blocks(made: MakeModel, name: str) -> None:
    path, tokens, wanted = made(name)
    backend = loaded(path)
    for shuffled in (False, True):
        driver = Driver(backend, blocks=70, shuffled=shuffled)
        for chunk in (TOKENS, 7, 3, 1):
            assert_close(driver.prefill(driver.start(tokens), chunk), wanted)
    assert backend.stats()["gathered_sequences"] != 0


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("block_tokens", [1, 5, 16])
def test_ragged_steps_of_prefills_and_decodes(
    made: MakeModel, name: str, shuffled: bool, block_tokens: int
) -> None:
    path, tokens, wanted = made(name)
    driver = Driver(loaded(path), blocks=300 // block_tokens, block_tokens=block_tokens, shuffled=shuffled)
    lengths = [TOKENS, 9, 30, 17]
    sequences = [driver.start(tokens[:length]) for length in lengths]
    found: list[list[Any]] = [[] for _ in sequences]
    # Sequence i starts at step 2 * i with chunks of a size of its own; even ones run on one token at a time.
    step = 0
    while any(s.cached < len(s.tokens) for s in sequences):
        parts, who = [], []
        for index, sequence in enumerate(sequences):
            left = len(sequence.tokens) - sequence.cached
            if left and step >= 2 * index:
                decoding = index % 2 == 0 and sequence.cached > 0
                parts.append((sequence, 1 if decoding else min(left, 5 + index)))
                who.append(index)
        for index, logits in zip(who, driver.step(parts), strict=True):
            found[index].append(logits)
        step += 1
    for length, rows in zip(lengths, found, strict=True):
        assert_close(np.concatenate(rows), wanted[:length])


def test_far_positions(made: MakeModel, tmp_path: Path) -> None:
    shape = TinyShape(context=9000, layers=1)
    path = tiny_hf(tmp_path / "far", shape=shape)
    tokens = np.random.default_rng(3).integers(0, shape.vocab, 2100).tolist()
    wanted = reference_logits(reference_of_directory(path), tokens)
    driver = Driver(loaded(path), blocks=140, block_tokens=16)
    sequence = driver.start(tokens)
    driver.step([(sequence, 2000)], rows=0)
    assert_close(
        np.concatenate([driver.step([(sequence, 99)])[0], driver.step([(sequence, 1)])[0]]), wanted[2000:]
    )


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.08), ("float16", 0.01)])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_half_precision_is_near(made: MakeModel, name: str, dtype: str, limit: float) -> None:
    path, tokens, wanted = made(name)
    backend = loaded(path, dtype=dtype)
    for shuffled in (False, True):
        driver = Driver(backend, blocks=70, shuffled=shuffled)
        found = driver.prefill(driver.start(tokens), 7)
        assert float(np.sqrt(np.mean((found - wanted) ** 2))) < limit * float(wanted.std())
