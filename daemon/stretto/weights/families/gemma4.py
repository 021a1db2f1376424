"""Gemma 4 (its language model): wider heads where attention is full, layers that share keys and values, experts beside the
feed-forward, and a further embedding of the token for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.weights.config import Experts, LayerAttention, ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.faults import invalid, unsupported
from stretto.weights.hf_reader import HFReader, short
from stretto.weights.hf_rope import read_hf_rope

_PATTERN = 6
_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    activation = read.values.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise unsupported(read.path, f"hidden_activation is {short(activation)}")
    pattern = [bool((layer + 1) % _PATTERN) for layer in range(config.layers)]
    sliding = [
        *read.sliding(config.layers, pattern)[:-1],
        False,
    ]  # the last one is full whatever the file says
    shared = read.whole("num_kv_shared_layers", 0)
    if not 0 <= shared < config.layers:
        raise invalid(read.path, f"num_kv_shared_layers is {shared}, of {config.layers} layers")
    layers = tuple(_layers(read, config, sliding))
    first_shared = config.layers - shared
    shares = frozenset(range(first_shared, config.layers))
    experts = None
    if read.flag("enable_moe_block", False):
        experts = Experts(
            read.whole("num_experts"),
            read.whole("top_k_experts"),
            read.whole("moe_intermediate_size"),
            normalised=True,
            beside_dense=True,
        )
    return replace(
        config,
        qk_norm=True,
        value_norm=True,
        activation="gelu_tanh",
        residual_norms=True,
        layer_scalars=True,
        embedding_scale=math.sqrt(config.hidden_size),
        query_scale=1.0,
        logit_cap=read.optional("final_logit_softcapping"),
        experts=experts,
        layer_attention=tuple(
            replace(layer, kv_layer=_source(read, sliding, number, first_shared))
            if number in shares
            else layer
            for number, layer in enumerate(layers)
        ),
        wide_layers=shares if read.flag("use_double_wide_mlp", False) else frozenset(),
        layer_input_size=read.whole("hidden_size_per_layer_input", 256),
        layer_input_vocab=read.whole("vocab_size_per_layer_input", 262_144),
    )


def _layers(read: HFReader, config: ModelConfig, sliding: Sequence[bool]) -> list[LayerAttention]:
    """Each layer's own geometry and positions."""
    window, context = read.window(), config.context_tokens
    keys_as_values = read.flag("attention_k_eq_v", False)
    wide = {"head_dim": read.whole("global_head_dim", 512), "num_key_value_heads": None}
    if keys_as_values:
        wide["num_key_value_heads"] = read.values.get("num_global_key_value_heads")
    changes: dict[str, Any] = read.values.get("per_layer_config") or {}
    made = []
    for number, slides in enumerate(sliding):
        own = changes.get(str(number), {}) if changes else {} if slides else wide
        if not isinstance(own, dict):
            raise invalid(read.path, f"per_layer_config has {short(own)} for layer {number}")
        of_layer = HFReader(read.path, own)
        size = of_layer.whole("head_dim", config.head_size)
        if slides:
            rope = read_hf_rope(
                read,
                size,
                context,
                kinds=("default", "proportional"),
                layers="sliding_attention",
                base=_LOCAL_BASE,
            )
        else:
            rope = read_hf_rope(
                read, size, context, kinds=("default", "proportional"), layers="full_attention", base=_BASE
            )
        made.append(
            LayerAttention(
                of_layer.whole("num_key_value_heads", config.kv_heads),
                size,
                window if slides and window < context else None,
                rope,
                keys_as_values=keys_as_values and not slides,
            )
        )
    return made


def _source(read: HFReader, sliding: Sequence[bool], layer: int, first_shared: int) -> int:
    """The last layer of the same type that has keys and values of its own."""
    for number in range(first_shared - 1, -1, -1):
        if sliding[number] == sliding[layer]:
            return number
    raise invalid(read.path, f"layer {layer} shares keys and values, and none of its type makes any")


FAMILY = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    wrappers=("Gemma4ForConditionalGeneration",),
    hf_defaults={
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
    },
    from_hf=_from_hf,
    hf_computed=frozenset({"hidden_act", "hidden_activation", "final_logit_softcapping"}),
    head_size=256,
    tied=True,
    own_rope=True,
)
