"""What layers are put together from: self-attention, feed-forwards, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.attention import ScoreRule
from stretto.backends.torch.decoder import Turned
from stretto.backends.torch.linear import Projection
from stretto.backends.torch.norm import HeadNorm, Norm
from stretto.backends.torch.rope import rotate

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its approximation with a hyperbolic tangent (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {"silu": F.silu, "gelu_tanh": gelu_tanh}
"""By ``ModelConfig.activation``."""


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Attention of one layer over the paged cache.

    Attributes:
        heads, kv_heads, head_size: its geometry; ``kv_heads`` is 0 for a layer that reads another's keys and values.
        place: layer group, and number of the layer in there.
        rope: which of the step's turns, or None.
        rule: of the scores.
        qkv: hidden to queries, keys and, unless those are the keys, values; of each its heads one after the other.
        head_norm: of queries and keys, or None.
        value_norm: of values, or None.
        keys_as_values: values are the keys before norm and rotation.
        out: heads * head_size to hidden.
    """

    heads: int
    kv_heads: int
    head_size: int
    place: tuple[int, int]
    rope: int | None
    rule: ScoreRule
    qkv: Projection
    head_norm: HeadNorm | None
    value_norm: Norm | None
    keys_as_values: bool
    out: Projection

    def __call__(self, x: Tensor, turned: Turned, *, mix: bool) -> Tensor | None:
        """See ``Layer.attend``; ``x``: [T, hidden], normed."""
        heads, keys = self.heads, self.heads + self.kv_heads
        group, layer = self.place
        step = turned.step.groups[group]
        projected = self.qkv(x).view(x.shape[0], -1, self.head_size)
        if self.keys_as_values:
            projected = torch.cat((projected, projected[:, heads:keys]), 1)
        rotated = projected[:, :keys]
        if self.head_norm is not None:
            self.head_norm(rotated)
        if self.rope is not None:
            rotate(rotated, turned.turns[self.rope])
        if self.kv_heads:
            if self.value_norm is not None:
                values = projected[:, keys:]
                values.copy_(self.value_norm(values))
            step.pool.write(layer, projected[:, heads:], step.slots, step.slot_run)
        if not mix:
            return None
        queries = projected[:, :heads]
        parts = [attend(layer, queries, self.rule) for attend in step.attention]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """Two products of the input, one of them through an activation, multiplied with each other, and a third of that.

    Attributes:
        gate_up: hidden to 2 * ffn; the gate first.
        down: ffn to hidden.
    """

    gate_up: Projection
    down: Projection
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.activation(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts: each token is computed by a few, and their outputs are added by weight.

    Attributes:
        experts: by number.
        per_token: how many compute a token.
        normalised: weights of those are made to add up to 1.
    """

    experts: Sequence[GatedFeedForward]
    per_token: int
    normalised: bool

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (float32) and numbers of the experts of each token, [T, per_token], from scores [T, experts]."""
        weights, chosen = scores.float().softmax(-1).topk(self.per_token, -1)
        return (weights / weights.sum(-1, keepdim=True) if self.normalised else weights), chosen

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """[T, hidden] from tokens and what ``choose`` gave."""
        # By expert, so that each one's weights are read once a step. The order within a token's sum is that of the numbers.
        order = chosen.flatten().argsort(stable=True)
        rows = order.div(self.per_token, rounding_mode="floor")
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        scaled = weights.flatten().index_select(0, order).to(x.dtype)[:, None]
        out = torch.zeros_like(x)
        first = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                part = slice(first, first + count)
                out.index_add_(0, rows[part], expert(x.index_select(0, rows[part])).mul_(scaled[part]))
                first += count
        return out
