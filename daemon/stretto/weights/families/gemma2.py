"""Gemma 2: every other layer looks back a window, scores and logits are capped, norms before and after each part."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import LAYER_TENSORS, Family
from stretto.weights.families.layers import with_windows
from stretto.weights.faults import unsupported
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader, short

HF_COMPUTED = frozenset(
    {"hidden_act", "hidden_activation", "attn_logit_softcapping", "final_logit_softcapping"}
)
"""Of config.json, read by ``gemma``."""

LAYER_TENSORS_OF_GEMMA = {
    **LAYER_TENSORS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Tensors of a layer in GGUF, by canonical name."""

_ACTIVATIONS = ("gelu_pytorch_tanh", None)
_WIDEST_LAYERS = 46
"""Only the largest model scales its scores by the hidden size instead of the head's, which GGUF files do not say."""


def gemma(config: ModelConfig) -> ModelConfig:
    """What Gemma 2 and 3 have in common, whatever the file."""
    return replace(
        config,
        activation="gelu_tanh",
        residual_norms=True,
        embedding_scale=math.sqrt(config.hidden_size),
    )


def gemma_from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    """``gemma``, and what config.json says more. Its norms' weights are kept less 1."""
    activation = read.values.get("hidden_activation")
    if activation not in _ACTIVATIONS:
        raise unsupported(
            read.path, f"hidden_activation is {short(activation)}; computed is {_ACTIVATIONS[0]}"
        )
    return replace(
        gemma(config),
        norm_offset=1.0,
        query_scale=read.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=read.optional("attn_logit_softcapping"),
        logit_cap=read.optional("final_logit_softcapping"),
    )


def gguf_query_scale(config: ModelConfig, widest_layers: int) -> float:
    """By head size, except for the family's widest model, which is known by its number of layers."""
    size = config.hidden_size // config.heads if config.layers == widest_layers else config.head_size
    return 1.0 / math.sqrt(size)


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    config = gemma_from_hf(read, config)
    if read.values.get("sliding_window") is None:
        return config
    alternating = [layer % 2 == 0 for layer in range(config.layers)]
    return with_windows(config, read.window(), read.sliding(config.layers, alternating))


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    config = replace(
        gemma(config),
        query_scale=gguf_query_scale(config, _WIDEST_LAYERS),
        attention_cap=read.number("attn_logit_softcapping", 50.0),
        logit_cap=read.number("final_logit_softcapping", 30.0),
    )
    window = read.whole("attention.sliding_window", 4096)
    return with_windows(config, window, read.sliding(config.layers, 2))


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    from_hf=_from_hf,
    hf_computed=HF_COMPUTED,
    head_size=256,
    tied=True,
    gguf=("gemma2",),
    from_gguf=_from_gguf,
    gguf_computed=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    layer_tensors=LAYER_TENSORS_OF_GEMMA,
)
