"""Layers of Gemma 2 and 3: norms before and after each part."""

from __future__ import annotations

from torch import Tensor

from stretto.backends.torch.decoder import Turned
from stretto.backends.torch.loading import LayerParts


class Gemma2Layer:
    """See Layer."""

    stores = True

    def __init__(self, parts: LayerParts) -> None:
        self._attention = parts.attention()
        self._attention_norm = parts.norm("input_layernorm")
        self._mixed_norm = parts.norm("post_attention_layernorm")
        self._ffn = parts.feed_forward()
        self._ffn_norm = parts.norm("pre_feedforward_layernorm")
        self._output_norm = parts.norm("post_feedforward_layernorm")

    def attend(self, hidden: Tensor, turned: Turned, *, mix: bool) -> Tensor | None:
        """See Layer."""
        return self._attention(self._attention_norm(hidden), turned, mix=mix)

    def finish(self, hidden: Tensor, mixed: Tensor, inputs: Tensor | None) -> Tensor:
        """See Layer."""
        hidden = hidden.add_(self._mixed_norm(self._attention.out(mixed)))
        return hidden.add_(self._output_norm(self._ffn(self._ffn_norm(hidden))))
