"""Bounds on the sizes that a model file may claim, so that arithmetic on them stays harmless."""

from __future__ import annotations

import math
from pathlib import Path

from stretto.weights.config import ModelConfig
from stretto.weights.faults import invalid, unsupported

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


def check_config(path: Path, config: ModelConfig) -> None:
    """Refuse sizes out of bounds or at odds with each other.

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
    rope = config.rope
    if rope.dims != config.head_size:
        raise unsupported(
            path, f"rotary positions on {rope.dims} of {config.head_size} values a head are not computed"
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
