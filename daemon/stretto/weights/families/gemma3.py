"""Gemma 3 (its language model): five layers with a window to each without, and rotary positions of their own for those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.families.gemma2 import (
    HF_COMPUTED,
    LAYER_TENSORS_OF_GEMMA,
    gemma,
    gemma_from_hf,
    gguf_query_scale,
)
from stretto.weights.families.layers import with_windows
from stretto.weights.faults import invalid
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader
from stretto.weights.hf_rope import read_hf_rope
from stretto.weights.rope_config import RopeConfig

_PATTERN = 6
_WIDEST_LAYERS = 62
_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0


def _sliding(config: ModelConfig, pattern: int) -> Sequence[bool]:
    return [bool((layer + 1) % pattern) for layer in range(config.layers)]


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    config = gemma_from_hf(read, replace(config, qk_norm=True))
    size, context, kinds = config.head_size, config.context_tokens, ("default", "linear")
    config = replace(
        config, rope=read_hf_rope(read, size, context, kinds=kinds, layers="full_attention", base=_BASE)
    )
    if read.values.get("rope_parameters") is None:
        local = RopeConfig(read.number("rope_local_base_freq", _LOCAL_BASE), size)
    else:
        local = read_hf_rope(read, size, context, kinds=kinds, layers="sliding_attention", base=_LOCAL_BASE)
    pattern = read.whole("sliding_window_pattern", read.whole("_sliding_window_pattern", _PATTERN))
    if pattern < 1:
        raise invalid(read.path, f"sliding_window_pattern is {pattern}")
    sliding = read.sliding(config.layers, _sliding(config, pattern))
    return with_windows(config, read.window(), sliding, local)


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    config = replace(
        gemma(config),
        qk_norm=True,
        query_scale=gguf_query_scale(config, _WIDEST_LAYERS),
        logit_cap=read.number("final_logit_softcapping", 0.0) or None,
        rope=config.rope if read.has_key("rope.freq_base") else replace(config.rope, base=_BASE),
    )
    local = RopeConfig(read.number("rope.freq_base_swa", _LOCAL_BASE), config.head_size)
    sliding = read.sliding(config.layers, _PATTERN)
    return with_windows(config, read.whole("attention.sliding_window"), sliding, local)


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    wrappers=("Gemma3ForConditionalGeneration",),
    hf_defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    from_hf=_from_hf,
    hf_computed=HF_COMPUTED,
    head_size=256,
    tied=True,
    own_rope=True,
    gguf=("gemma3",),
    from_gguf=_from_gguf,
    gguf_computed=frozenset({"final_logit_softcapping"}),
    layer_tensors=LAYER_TENSORS_OF_GEMMA,
)
