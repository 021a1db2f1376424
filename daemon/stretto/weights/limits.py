"""Bounds on the sizes that a model file may claim, so that arithmetic on them stays harmless."""

from __future__ import annotations

import math
from pathlib import Path

from stretto.weights.config import Experts, LayerAttention, ModelConfig
from stretto.weights.faults import invalid, unsupported
from stretto.weights.rope_config import RopeConfig

_RANGES: dict[str, tuple[int, int]] = {
    "vocab_size": (1, 1 << 22),
    "hidden_size": (1, 1 << 17),
    "layers": (1, 1 << 10),
    "heads": (1, 1 << 12),
    "kv_heads": (1, 1 << 12),
    "head_size": (2, 1 << 12),
    "ffn_size": (1, 1 << 20),
    "context_tokens": (1, 1 << 28),
}
"""Smallest and largest value of each size; the largest are far above any published model."""


def check_config(path: Path, config: ModelConfig, *, partial_rope: bool = False) -> None:
    """Refuse sizes out of bounds or at odds with each other.

    Args:
        partial_rope: the family computes rotary positions on part of a head.

    Raises:
        StartupError: ``model_invalid``, or ``model_unsupported`` for rotary positions on part of a head.
    """
    for name, (least, most) in _RANGES.items():
        value = getattr(config, name)
        if not least <= value <= most:
            raise invalid(path, f"{name} is {value}, out of {least} to {most}")
    if config.heads % config.kv_heads:
        raise invalid(path, f"{config.heads} query heads cannot share {config.kv_heads} KV heads evenly")
    if config.head_size % 2:
        raise invalid(path, f"head_size {config.head_size} is odd, which rotary positions cannot use")
    if not 0 < config.norm_eps < 1:
        raise invalid(path, f"norm_eps is {config.norm_eps}, not between 0 and 1")
    _check_rope(path, config.rope, config.head_size, partial=partial_rope)
    for layer in config.layer_attention:
        _check_layer(path, config, layer, partial=partial_rope)
    if config.experts is not None:
        _check_experts(path, config.experts)
    for name in ("query_scale", "attention_cap", "logit_cap"):
        scale = getattr(config, name)
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise invalid(path, f"{name} is {scale}")
    if config.layer_input_size and not (
        1 <= config.layer_input_size <= 1 << 14 and config.vocab_size <= config.layer_input_vocab <= 1 << 22
    ):
        raise invalid(
            path, f"the layers' own embedding is {config.layer_input_vocab} x {config.layer_input_size}"
        )


def _check_layer(path: Path, config: ModelConfig, layer: LayerAttention, *, partial: bool) -> None:
    for name in ("kv_heads", "head_size"):
        (least, most), value = _RANGES[name], getattr(layer, name)
        if not least <= value <= most:
            raise invalid(path, f"{name} of a layer is {value}, out of {least} to {most}")
    if config.heads % layer.kv_heads:
        raise invalid(path, f"{config.heads} query heads cannot share {layer.kv_heads} KV heads evenly")
    if layer.head_size % 2:
        raise invalid(path, f"head_size {layer.head_size} is odd, which rotary positions cannot use")
    if layer.rope is not None:
        _check_rope(path, layer.rope, layer.head_size, partial=partial)


def _check_experts(path: Path, experts: Experts) -> None:
    if not 1 <= experts.per_token <= experts.count <= 1 << 12:
        raise invalid(path, f"{experts.per_token} of {experts.count} experts cannot be chosen")
    least, most = _RANGES["ffn_size"]
    if not least <= experts.ffn_size <= most:
        raise invalid(path, f"an expert is {experts.ffn_size} wide, out of {least} to {most}")


def _check_rope(path: Path, rope: RopeConfig, head_size: int, *, partial: bool) -> None:
    if rope.dims != head_size and not (partial and 2 <= rope.dims < head_size and rope.dims % 2 == 0):
        raise unsupported(
            path, f"rotary positions on {rope.dims} of {head_size} values a head are not computed"
        )
    if not (math.isfinite(rope.base) and rope.base > 1):
        raise invalid(path, f"the rotary base is {rope.base}")
    if not (math.isfinite(rope.factor) and rope.factor > 0):
        raise invalid(path, f"the rotary scaling factor is {rope.factor}")
    if not (math.isfinite(rope.attention_scale) and rope.attention_scale > 0):
        raise invalid(path, f"the rotary attention factor is {rope.attention_scale}")
    if rope.scaling in ("llama3", "yarn") and rope.frequency_divisors is None:
        if not 1 <= rope.original_context_tokens <= 1 << 28:
            raise invalid(path, f"the rotary scaling's original context is {rope.original_context_tokens}")
        low, high = (
            (rope.low_frequency_factor, rope.high_frequency_factor)
            if rope.scaling == "llama3"
            else (rope.beta_slow, rope.beta_fast)
        )
        if not (0 < low < high < math.inf):
            raise invalid(path, f"the rotary scaling's bounds are {low} and {high}")
