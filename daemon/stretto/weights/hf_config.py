"""A ModelConfig from Hugging Face's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.weights.config import ModelConfig, RopeConfig
from stretto.weights.faults import invalid, unsupported
from stretto.weights.limits import check_config

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures of config.json that can be computed, and the family of each."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
    "logit_scale": (1, None),
    "embedding_multiplier": (1, None),
    "residual_multiplier": (1, None),
    "attention_multiplier": (None,),
}
"""Keys that change the arithmetic, and the values under which nothing is left out here."""

_ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor", "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
            "beta_slow", "truncate",
        }
    ),
}  # fmt: skip


class _Reader:
    """Typed look-ups in config.json."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def whole(self, key: str, otherwise: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = otherwise
        if value is None:
            raise invalid(self.path, f"{key} is missing")
        if type(value) is not int:
            raise invalid(self.path, f"{key} is {value!r}, not a whole number")
        return value

    def number(self, key: str, otherwise: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = otherwise
        if value is None:
            raise invalid(self.path, f"{key} is missing")
        if type(value) is int and abs(value) < 1 << 53:
            return float(value)
        if type(value) is not float:
            raise invalid(self.path, f"{key} is {value!r}, not a number")
        return value

    def flag(self, key: str, otherwise: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return otherwise
        if type(value) is not bool:
            raise invalid(self.path, f"{key} is {value!r}, not a truth value")
        return value


def read_hf_config(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """Build the configuration.

    Args:
        path: of config.json, for messages.
        values: its contents.

    Raises:
        StartupError: ``model_unsupported`` or ``model_invalid``, naming the key.
    """
    read = _Reader(path, values)
    if isinstance(values.get("quantization"), dict):
        raise unsupported(
            path,
            f"quantization is {_short(values['quantization'])}: the checkpoint is packed for MLX",
            remedy="--backend mlx computes it.",
        )
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise unsupported(
            path, f"architectures is {names!r}", remedy=f"Computable are {', '.join(FAMILIES)}."
        )
    for key, neutral in _NEUTRAL.items():
        if key in values and not any(values[key] is item or values[key] == item for item in neutral):
            raise unsupported(path, f"{key} is {_short(values[key])}, which is not computed here")
    context = read.whole("max_position_embeddings")
    if family == "llama" and read.whole("sliding_window", context) < context:
        raise unsupported(
            path, f"sliding_window is {values['sliding_window']}: sliding windows are not computed"
        )
    kinds = values.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise unsupported(path, f"layer_types is {_short(kinds)}; only full_attention is computed")
    hidden, heads = read.whole("hidden_size"), read.whole("num_attention_heads")
    if heads < 1:
        raise invalid(path, f"num_attention_heads is {heads}")
    # Qwen 3's heads are 128 wide unless told otherwise; the other families divide the hidden size.
    head_size = read.whole("head_dim", 128 if family == "qwen3" else hidden // heads)
    config = ModelConfig(
        family=family,
        vocab_size=read.whole("vocab_size"),
        hidden_size=hidden,
        layers=read.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=read.whole("num_key_value_heads", heads),
        head_size=head_size,
        ffn_size=read.whole("intermediate_size"),
        context_tokens=context,
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=_read_rope(read, head_size, context),
        tied_embeddings=read.flag("tie_word_embeddings", False),
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )
    check_config(path, config)
    return config


def _read_rope(read: _Reader, head_size: int, context: int) -> RopeConfig:
    """``rope_parameters`` (transformers 5), or ``rope_scaling`` beside ``rope_theta`` (before)."""
    path, values = read.path, read.values
    found = values.get("rope_parameters")
    if found is None:
        found = values.get("rope_scaling")
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise invalid(path, f"the rotary parameters are {_short(found)}, not an object")
    kind = found.get("rope_type", found.get("type", "default"))
    known = _ROPE_KEYS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise unsupported(path, f"rope_type is {kind!r}; {', '.join(_ROPE_KEYS)} are computed")
    common = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    for key in found:
        # Files that were re-saved keep parameters of other kinds as null.
        if key not in known and key not in common and found[key] is not None:
            raise unsupported(path, f"the rotary parameter {key} of rope_type {kind!r} is not known")
    rope = _Reader(
        path, {**{key: values.get(key) for key in ("rope_theta", "partial_rotary_factor")}, **found}
    )
    base = rope.number("rope_theta", 10_000.0)
    part = rope.number("partial_rotary_factor", 1.0)
    if not 0 < part <= 1:
        raise invalid(path, f"partial_rotary_factor is {part}")
    dims = int(head_size * part)
    if kind == "default":
        return RopeConfig(base, dims)
    factor = rope.number("factor", None if kind != "yarn" else 0.0)
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


def _attention_scale(rope: _Reader, factor: float) -> float:
    """What YaRN multiplies cosines and sines by, unless the file says: 0.1 ln(factor) + 1."""
    if rope.values.get("attention_factor") is not None:
        return rope.number("attention_factor")

    def stretch(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, over_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if mscale and over_all:
        return stretch(mscale) / stretch(over_all)
    return stretch(1.0)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
