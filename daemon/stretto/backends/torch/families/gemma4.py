"""Layers of Gemma 4: Gemma 3's, with experts beside the feed-forward, a further input for each layer, and a scale."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.decoder import Turned
from stretto.backends.torch.loading import LayerParts, ModelParts
from stretto.backends.torch.norm import Norm
from stretto.backends.torch.parts import ACTIVATIONS


class Gemma4Layer:
    """See Layer."""

    def __init__(self, parts: LayerParts) -> None:
        config = parts.config
        self.stores = config.attention(parts.number).kv_layer is None
        self._attention = parts.attention()
        self._attention_norm = parts.norm("input_layernorm")
        self._mixed_norm = parts.norm("post_attention_layernorm")
        self._ffn = parts.feed_forward()
        self._ffn_norm = parts.norm("pre_feedforward_layernorm")
        self._output_norm = parts.norm("post_feedforward_layernorm")
        self._experts = _BesideDense(parts) if config.experts is not None else None
        self._input = _LayerInput(parts) if config.layer_input_size else None
        self._scale = parts.vector("layer_scalar")

    def attend(self, hidden: Tensor, turned: Turned, *, mix: bool) -> Tensor | None:
        """See Layer."""
        return self._attention(self._attention_norm(hidden), turned, mix=mix)

    def finish(self, hidden: Tensor, mixed: Tensor, inputs: Tensor | None) -> Tensor:
        """See Layer."""
        hidden = hidden.add_(self._mixed_norm(self._attention.out(mixed)))
        out = self._ffn(self._ffn_norm(hidden))
        if self._experts is not None:
            out = self._experts(hidden, out)
        hidden = hidden.add_(self._output_norm(out))
        if self._input is not None and inputs is not None:
            hidden = hidden.add_(self._input(hidden, inputs))
        return hidden.mul_(self._scale)


class _BesideDense:
    """Experts over the same residual as the feed-forward, added to its output; each has norms of its own."""

    def __init__(self, parts: LayerParts) -> None:
        self._experts = parts.experts()
        self._router_norm = Norm(None, parts.config.norm_eps)
        self._router_scale = parts.vector("router.scale") * parts.config.hidden_size**-0.5
        self._router = parts.matrix("router.proj.weight")
        self._expert_scale = parts.vector("router.per_expert_scale")
        self._dense_norm = parts.norm("post_feedforward_layernorm_1")
        self._input_norm = parts.norm("pre_feedforward_layernorm_2")
        self._output_norm = parts.norm("post_feedforward_layernorm_2")

    def __call__(self, hidden: Tensor, dense: Tensor) -> Tensor:
        """``hidden``: the residual; ``dense``: the feed-forward's output for it."""
        scores = self._router(self._router_norm(hidden) * self._router_scale)
        weights, chosen = self._experts.choose(scores)
        weights = weights * self._expert_scale[chosen]
        mixed = self._experts(self._input_norm(hidden), weights, chosen)
        return self._dense_norm(dense) + self._output_norm(mixed)


class _LayerInput:
    """The layer's own embedding of the token, let through by a gate."""

    def __init__(self, parts: LayerParts) -> None:
        self._gate = parts.matrix("per_layer_input_gate.weight")
        self._projection = parts.matrix("per_layer_projection.weight")
        self._norm = parts.norm("post_per_layer_input_norm")
        self._activation = ACTIVATIONS[parts.config.activation]

    def __call__(self, hidden: Tensor, inputs: Tensor) -> Tensor:
        gated = self._activation(self._gate(hidden)) * inputs
        return self._norm(self._projection(gated))


class Gemma4Inputs:
    """See LayerInputs: a table by token, and a projection of the embedding."""

    def __init__(self, parts: ModelParts) -> None:
        config = parts.config
        self._size = config.layer_input_size
        self._table = parts.table("model.embed_tokens_per_layer.weight")
        self._projection = parts.matrix("model.per_layer_model_projection.weight")
        self._norm = parts.norm("model.per_layer_projection_norm")
        self._table_scale = torch.tensor(self._size**0.5, dtype=self._table.dtype)
        self._projection_scale = config.hidden_size**-0.5

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """See LayerInputs."""
        shape = (token_ids.shape[0], -1, self._size)
        looked_up = (F.embedding(token_ids, self._table) * self._table_scale).view(shape)
        projected = self._norm((self._projection(hidden) * self._projection_scale).view(shape))
        return projected.add_(looked_up).mul_(2.0**-0.5)
