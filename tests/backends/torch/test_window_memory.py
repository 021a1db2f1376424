"""Models with windows through the whole engine: they answer as the reference does, and hold their window and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.backends.torch import TorchBackend  # noqa: E402
from stretto.engine import EngineConfig  # noqa: E402
from stretto.weights import open_model  # noqa: E402
from support.engine_harness import Running  # noqa: E402
from support.shared_backends import asked  # noqa: E402
from support.torch_runs import reference_logits, reference_of_directory  # noqa: E402
from support.weights_families import SHAPE, tiny_family  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = EngineConfig(max_batch=2, max_context_tokens=192, block_tokens=4, prefill_chunk_tokens=12)
ANSWER_TOKENS = 20


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gemma4-shared"])
def test_answers_are_the_references(tmp_path: Path, name: str) -> None:
    path = tiny_family(tmp_path, name)
    reference = reference_of_directory(path)
    rng = np.random.default_rng(5)
    first = rng.integers(3, SHAPE.vocab, 70).tolist()
    prompts = {"first": first, "branch": first[:50] + rng.integers(3, SHAPE.vocab, 9).tolist()}
    with Running(TorchBackend(open_model(path), device="cpu", dtype="float32", threads=1), CONFIG) as running:
        sliding = [
            index
            for index, group in enumerate(running.engine.facts.spec.layer_groups)  # type: ignore[union-attr]
            if group.window_tokens is not None
        ]
        blocks = running.engine.facts.kv.blocks  # type: ignore[union-attr]
        assert len(sliding) == 1
        assert blocks[sliding[0]] < 2 * 48  # of two sequences of the whole context
        for prompt_name, prompt in [*prompts.items(), ("again", first)]:
            heard = running.submit(asked(prompt_name, prompt, ANSWER_TOKENS))
            running.finish([heard])
            text = list(prompt)
            for token in heard.ids:
                # A near tie may be drawn either way; what was drawn is as good as the best.
                logits = reference_logits(reference, text, rows=1)[-1]
                assert logits[token] > logits.max() - 1e-3
                text.append(token)
            assert len(heard.ids) == ANSWER_TOKENS
        assert heard.outcome.cached_tokens == 68
