"""Layers with a norm before each part: Llama, Mistral, SmolLM, Qwen2, Qwen3, Phi-3 and Phi-4.

They differ in which parts of attention are there (biases, norms on heads, positions, a window), which the parts know.
"""

from __future__ import annotations

from torch import Tensor

from stretto.backends.torch.decoder import Turned
from stretto.backends.torch.linear import Projection
from stretto.backends.torch.loading import LayerParts


class LlamaLayer:
    """See Layer."""

    stores = True

    def __init__(self, parts: LayerParts) -> None:
        self._attention = parts.attention()
        self._attention_norm = parts.norm("input_layernorm")
        self._ffn: Projection = parts.feed_forward()
        self._ffn_norm = parts.norm("post_attention_layernorm")

    def attend(self, hidden: Tensor, turned: Turned, *, mix: bool) -> Tensor | None:
        """See Layer."""
        return self._attention(self._attention_norm(hidden), turned, mix=mix)

    def finish(self, hidden: Tensor, mixed: Tensor, inputs: Tensor | None) -> Tensor:
        """See Layer."""
        hidden = hidden.add_(self._attention.out(mixed))
        return hidden.add_(self._ffn(self._ffn_norm(hidden)))
