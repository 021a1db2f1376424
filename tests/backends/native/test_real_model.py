"""SmolLM2 through the native kernels: how far its next-token distributions are from float32's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.base import KVPlan
from stretto.weights import load_tokenizer, open_model
from support.native_runs import chunk, divergence, native, torch_logits

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

TEXT = (
    "The lighthouse at the end of the bay had been dark for eleven years when the council voted to light it again. "
    "Nobody had expected the motion to pass: the lamp was costly, the road to the point had washed out twice, and ships "
    "now found their way by satellite. But the fishermen of the village spoke one after another, and each told of a night "
    "on which the small boats had come home late, in fog, with their instruments dead. An engineer from the city "
    "explained how the lens works. It gathers the light of a single bulb and bends it, ring by ring, into a beam that can "
    "be seen from thirty kilometres away. The lens weighs two tons, she said, and it floats in a bath of mercury so that "
    "a clock no larger than a suitcase can turn it. In the end the vote was nine to four."
)


@pytest.mark.parametrize(("kv_dtype", "most"), [("bfloat16", 0.008), ("int8", 0.001)])
def test_next_tokens_are_near_float32(smollm2_path: Path, kv_dtype: str, most: float) -> None:
    """The bound is at least twice what was measured when this was written (docs/backends.md has more exact figures)."""
    source = open_model(smollm2_path)
    tokens = load_tokenizer(source).encode(TEXT, allow_special=False)
    source.close()
    assert len(tokens) > 150
    backend = native(smollm2_path, threads=2, kv_dtype=kv_dtype)
    backend.allocate(KVPlan(16, (16,)))
    table = [9, 2, 14, 0, 7, 5, 11, 3, 1, 13, 6, 15]
    half = len(tokens) // 2
    logits = np.concatenate(
        [
            backend.forward([chunk(tokens[:half], 0, table, half)]),
            backend.forward([chunk(tokens[half:], half, table, len(tokens) - half)]),
        ]
    )
    backend.close()
    reference = torch_logits(smollm2_path, tokens)
    distance = divergence(reference, logits)
    assert distance.mean() < most
    assert (reference.argmax(-1) == logits.argmax(-1)).mean() > 0.9
