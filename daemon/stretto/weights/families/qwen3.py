"""Qwen3 (dense): norms on each head of queries and keys, and heads whose size is their own."""

from __future__ import annotations

from dataclasses import replace

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.families.qwen2 import with_upper_windows
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    return replace(with_upper_windows(read, config), qk_norm=True)


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm=True)


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    from_hf=_from_hf,
    hf_computed=frozenset({"use_sliding_window"}),
    head_size=128,
    gguf=("qwen3",),
    from_gguf=_from_gguf,
)
