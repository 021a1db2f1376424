"""Rotary frequencies against those of ``transformers``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.weights.hf_config import read_hf_config

KINDS: dict[str, dict[str, object]] = {
    "default": {},
    "linear": {"factor": 2.5},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32_768},
    "yarn-all": {
        "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0, "beta_slow": 2.0, "mscale": 0.7,
        "mscale_all_dim": 1.2, "truncate": False,
    },
    "yarn-scale": {"factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5},
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1e6])
def test_equal_to_transformers(kind: str, base: float) -> None:
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": kind.split("-")[0], "rope_theta": base, **KINDS[kind]}
    reference = transformers.LlamaConfig(
        hidden_size=1024, num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072,
        rope_parameters=dict(parameters), architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    embedding = LlamaRotaryEmbedding(reference)
    rope = read_hf_config(Path("config.json"), reference.to_dict()).rope
    assert rope.attention_scale == pytest.approx(embedding.attention_scaling, rel=1e-12)
    wanted = embedding.inv_freq.to(torch.float32).numpy()
    found = rope.inverse_frequencies()
    assert found.dtype == np.float32
    # The two libraries' float32 powers may differ in the last place; angles at 131,072 tokens then differ by < 0.02.
    assert np.abs(found / wanted - 1).max() < 5e-7
