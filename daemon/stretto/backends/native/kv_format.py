"""In what form keys and values are kept, and what a token of them takes. Pure."""

from __future__ import annotations

from stretto.backends.base import LayerGroup
from stretto.weights.config import ModelConfig

KV_FORMAT_NUMBERS = {"float32": 0, "bfloat16": 1, "int8": 2}
"""``enum KvFormat`` of ``src/kernels.h``."""

DEFAULT_KV_DTYPE = "bfloat16"
KV_GROUP = 32
"""Values of a head that share a scale in int8."""


def resolved_kv_dtype(asked: str) -> str:
    """What ``auto`` stands for, or what was asked for.

    Raises:
        ValueError: it is none of ``KV_FORMAT_NUMBERS``, nor ``auto``.
    """
    if asked == "auto":
        return DEFAULT_KV_DTYPE
    if asked not in KV_FORMAT_NUMBERS:
        raise ValueError(f"kv_dtype is {asked!r}; it is auto, {', '.join(KV_FORMAT_NUMBERS)}")
    return asked


def head_token_bytes(head_size: int, kv_dtype: str) -> int:
    """Bytes of one token's key, or value, in one head; with int8, 2 for the scale of each group among them."""
    if kv_dtype == "int8":
        return head_size + 2 * -(-head_size // KV_GROUP)
    return head_size * {"float32": 4, "bfloat16": 2}[kv_dtype]


def kv_layer_groups(config: ModelConfig, kv_dtype: str) -> tuple[LayerGroup, ...]:
    """As the engine knows them: of what the kernels compute, all layers attend to everything and are alike.

    Blocks of a number of tokens that is no multiple of 16 take a little more: their keys are padded to whole vectors.
    """
    token_bytes = 2 * config.layers * config.kv_heads * head_token_bytes(config.head_size, kv_dtype)
    return (LayerGroup("full", config.layers, config.kv_heads, config.head_size, None, token_bytes),)
