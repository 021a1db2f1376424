"""Layers that differ from each other by their window and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.weights.config import LayerAttention, ModelConfig
from stretto.weights.rope_config import RopeConfig


def with_windows(
    config: ModelConfig, window_tokens: int, sliding: Sequence[bool], local_rope: RopeConfig | None = None
) -> ModelConfig:
    """Give some layers a sliding window, and rotary positions of their own where the family has those.

    A window that the context never leaves is none.
    """
    if not any(sliding) or (window_tokens >= config.context_tokens and local_rope is None):
        return config
    window = window_tokens if window_tokens < config.context_tokens else None
    local = local_rope or config.rope
    return replace(
        config,
        layer_attention=tuple(
            LayerAttention(
                config.kv_heads,
                config.head_size,
                window if slides else None,
                local if slides else config.rope,
            )
            for slides in sliding
        ),
    )
