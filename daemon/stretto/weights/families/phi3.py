"""Phi-3 and Phi-4: fused projections, rotary positions on a part of each head, LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import LAYER_TENSORS, Family
from stretto.weights.families.layers import with_windows
from stretto.weights.faults import invalid
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader
from stretto.weights.hf_rope import longrope_scale, read_hf_rope
from stretto.weights.rope_config import RopeConfig


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    rope = read_hf_rope(read, config.head_size, config.context_tokens, kinds=("default", "longrope"))
    config = replace(config, fused=True, rope=rope)
    if read.values.get("sliding_window") is None:
        return config
    return with_windows(config, read.window(), read.sliding(config.layers, [True] * config.layers))


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    config = replace(config, fused=True, rope=_gguf_rope(read, config))
    window = read.whole("attention.sliding_window", 0)
    return with_windows(config, window, [window > 0] * config.layers)


def _gguf_rope(read: GGUFReader, config: ModelConfig) -> RopeConfig:
    near, far = read.vector("rope_factors_short.weight"), read.vector("rope_factors_long.weight")
    if near is None or far is None:
        return config.rope
    dims = config.rope.dims
    if len(near) != dims // 2 or len(far) != dims // 2 or not all(value > 0 for value in (*near, *far)):
        raise invalid(read.path, f"the rotary factors are not {dims // 2} positive numbers each")
    original = read.whole("rope.scaling.original_context_length", config.context_tokens)
    if original < 1:
        raise invalid(read.path, f"rope.scaling.original_context_length is {original}")
    factor = config.context_tokens / original
    scale = read.number("rope.scaling.attn_factor", longrope_scale(factor, original))
    return RopeConfig(
        config.rope.base,
        dims,
        "longrope",
        factor,
        original_context_tokens=original,
        attention_scale=scale,
        frequency_divisors=near,
        long_divisors=far,
    )


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    from_hf=_from_hf,
    own_rope=True,
    partial_rope=True,
    gguf=("phi3",),
    from_gguf=_from_gguf,
    layer_tensors={
        **LAYER_TENSORS,
        "attn_qkv": "self_attn.qkv_proj",
        "ffn_up": "mlp.gate_up_proj",
    },
)
