"""A ModelConfig from Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.weights.config import ModelConfig
from stretto.weights.families import FAMILIES, Family, computable
from stretto.weights.faults import invalid, unsupported
from stretto.weights.hf_reader import HFReader, short
from stretto.weights.hf_rope import read_hf_rope
from stretto.weights.limits import check_config
from stretto.weights.rope_config import RopeConfig

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "hidden_activation": ("silu", None),
    "mlp_bias": (False, None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "use_bidirectional_attention": (False, None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "quantization_config": (None,),
    "logit_scale": (1, None),
    "embedding_multiplier": (1, None),
    "residual_multiplier": (1, None),
    "attention_multiplier": (None,),
}
"""Keys that change the arithmetic, and the values under which nothing is left out here. A family may compute more of them."""


def read_hf_config(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """Build the configuration.

    Args:
        path: of config.json, for messages.
        values: its contents.

    Raises:
        StartupError: ``model_unsupported`` or ``model_invalid``, naming the key.
    """
    if isinstance(values.get("quantization"), dict):
        raise unsupported(
            path,
            f"quantization is {short(values['quantization'])}: the checkpoint is packed for MLX",
            remedy="--backend mlx computes it.",
        )
    family, values = _family(path, values)
    for key, neutral in _NEUTRAL.items():
        if key in family.hf_computed or key not in values:
            continue
        if not any(values[key] is item or values[key] == item for item in neutral):
            raise unsupported(path, f"{key} is {short(values[key])}, which is not computed here")
    read = HFReader(path, values)
    context = read.whole("max_position_embeddings")
    hidden, heads = read.whole("hidden_size"), read.whole("num_attention_heads")
    if heads < 1:
        raise invalid(path, f"num_attention_heads is {heads}")
    head_size = read.whole("head_dim", family.head_size or hidden // heads)
    config = ModelConfig(
        family=family.name,
        vocab_size=read.whole("vocab_size"),
        hidden_size=hidden,
        layers=read.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=read.whole("num_key_value_heads", heads),
        head_size=head_size,
        ffn_size=read.whole("intermediate_size"),
        context_tokens=context,
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=RopeConfig(10_000.0, head_size)
        if family.own_rope
        else read_hf_rope(read, head_size, context, base=family.rope_base),
        tied_embeddings=read.flag("tie_word_embeddings", family.tied),
    )
    check_config(path, config, partial_rope=family.partial_rope)
    config = family.from_hf(read, config)
    check_config(path, config, partial_rope=family.partial_rope)
    return config


def _family(path: Path, values: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]]:
    """The family, and the language model's part of config.json."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for family in FAMILIES:
        if name in family.architectures:
            return family, values
        if name in family.wrappers:
            part = values.get("text_config")
            if not isinstance(part, dict):
                raise invalid(path, f"text_config is {short(part)}, not an object")
            common = {"architectures": [name], "tie_word_embeddings": values.get("tie_word_embeddings")}
            return family, {**common, **family.hf_defaults, **part}
    raise unsupported(
        path, f"architectures is {names!r}", remedy=f"Computable are {', '.join(computable())}."
    )
