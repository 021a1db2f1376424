"""Rotary positions from config.json."""

from __future__ import annotations

import math

from stretto.weights.faults import invalid, unsupported
from stretto.weights.hf_reader import HFReader, short
from stretto.weights.rope_config import RopeConfig

_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor", "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
            "beta_slow", "truncate",
        }
    ),
    "longrope": frozenset(
        {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"}
    ),
    "proportional": frozenset(),
}  # fmt: skip
"""Kinds of rotary positions that can be computed, and the parameters of each."""


PLAIN = ("default", "linear", "llama3", "yarn")
"""Kinds that any family may have."""


def read_hf_rope(
    read: HFReader,
    head_size: int,
    context: int,
    *,
    kinds: tuple[str, ...] = PLAIN,
    layers: str | None = None,
    base: float = 10_000.0,
) -> RopeConfig:
    """``rope_parameters`` (transformers 5), or ``rope_scaling`` beside ``rope_theta`` (before).

    Args:
        head_size: values a head.
        context: the model's context, in tokens.
        kinds: those that the family computes.
        layers: ``full_attention`` or ``sliding_attention``, where the parameters are listed by type of layer.
        base: theta where the file leaves it out.

    Raises:
        StartupError: ``model_unsupported`` naming a kind or parameter that is not computed; ``model_invalid``.
    """
    path, values = read.path, read.values
    found = values.get("rope_parameters")
    if found is None:
        found = values.get("rope_scaling")
    elif layers is not None and isinstance(found, dict):
        found = found.get(layers)
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise invalid(path, f"the rotary parameters are {short(found)}, not an object")
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "su":  # the name that longrope had before
        kind = "longrope"
    if kind not in kinds:
        raise unsupported(path, f"rope_type is {kind!r}; {', '.join(kinds)} are computed")
    common = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for key in found:
        # Files that were re-saved keep parameters of other kinds as null.
        if key not in _KEYS[kind] and key not in common and found[key] is not None:
            raise unsupported(path, f"the rotary parameter {key} of rope_type {kind!r} is not known")
    rope = HFReader(
        path, {**{key: values.get(key) for key in ("rope_theta", "partial_rotary_factor")}, **found}
    )
    base = rope.number("rope_theta", base)
    part = rope.number("partial_rotary_factor", 1.0)
    if not 0 < part <= 1:
        raise invalid(path, f"partial_rotary_factor is {part}")
    if kind == "proportional":
        return RopeConfig(base, head_size, kind, turning=int(part * head_size // 2))
    dims = int(head_size * part)
    if kind == "default":
        return RopeConfig(base, dims)
    factor = rope.number("factor", None if kind not in ("yarn", "longrope") else 0.0)
    if kind == "linear":
        return RopeConfig(base, dims, "linear", factor)
    original = read.whole(
        "original_max_position_embeddings", rope.whole("original_max_position_embeddings", context)
    )
    if kind == "llama3":
        return RopeConfig(
            base,
            dims,
            "llama3",
            factor,
            original_context_tokens=original,
            low_frequency_factor=rope.number("low_freq_factor"),
            high_frequency_factor=rope.number("high_freq_factor"),
        )
    if factor == 0.0 and original > 0:
        factor = context / original
    if kind == "longrope":
        return _longrope(rope, base, dims, factor, original)
    return RopeConfig(
        base,
        dims,
        "yarn",
        factor,
        original_context_tokens=original,
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        truncate=rope.flag("truncate", True),
        attention_scale=_attention_scale(rope, factor),
    )


def longrope_scale(factor: float, original_tokens: int) -> float:
    """What LongRoPE multiplies cosines and sines by, unless a file says."""
    if factor <= 1 or original_tokens <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_tokens))


def _longrope(rope: HFReader, base: float, dims: int, factor: float, original: int) -> RopeConfig:
    near, far = rope.numbers("short_factor"), rope.numbers("long_factor")
    for key, values in (("short_factor", near), ("long_factor", far)):
        if len(values) != dims // 2 or not all(math.isfinite(value) and value > 0 for value in values):
            raise invalid(rope.path, f"{key} is not a list of {dims // 2} positive numbers")
    scale = rope.optional("attention_factor")
    return RopeConfig(
        base,
        dims,
        "longrope",
        factor,
        original_context_tokens=original,
        attention_scale=longrope_scale(factor, original) if scale is None else scale,
        frequency_divisors=near,
        long_divisors=far,
    )


def _attention_scale(rope: HFReader, factor: float) -> float:
    """What YaRN multiplies cosines and sines by, unless the file says: 0.1 ln(factor) + 1."""
    if rope.values.get("attention_factor") is not None:
        return rope.number("attention_factor")

    def stretch(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, over_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if mscale and over_all:
        return stretch(mscale) / stretch(over_all)
    return stretch(1.0)
