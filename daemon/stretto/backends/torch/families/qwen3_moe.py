"""Llama's layers with experts for a feed-forward."""

from __future__ import annotations

from torch import Tensor

from stretto.backends.torch.families.llama import LlamaLayer
from stretto.backends.torch.loading import LayerParts


class Qwen3MoeLayer(LlamaLayer):
    """See Layer."""

    def __init__(self, parts: LayerParts) -> None:
        self._attention = parts.attention()
        self._attention_norm = parts.norm("input_layernorm")
        self._ffn_norm = parts.norm("post_attention_layernorm")
        if not parts.config.has_experts(parts.number):
            self._ffn = parts.feed_forward()
            return
        router, experts = parts.matrix("mlp.gate.weight"), parts.experts()

        def mixture(x: Tensor) -> Tensor:
            return experts(x, *experts.choose(router(x)))

        self._ffn = mixture
