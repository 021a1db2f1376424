"""The Llama family's forward pass: llama, qwen2 and qwen3 (dense) differ only in which parts are there.

Plain functions over tensors under ``torch.inference_mode``: no modules, no autograd, no shape that depends on a
maximum. Norms, softmax and the accumulation of products are in float32 whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.attention import Attention
from stretto.backends.torch.kv import KVPool
from stretto.backends.torch.linear import Projection
from stretto.backends.torch.rope import Rope
from stretto.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        attention_norm, ffn_norm: [hidden].
        qkv: hidden to (heads + 2 * kv_heads) * head_size; queries, keys, values.
        head_norm: [heads + kv_heads, head_size], the norms of queries and keys, head by head; None without them.
        attention_out: heads * head_size to hidden.
        gate_up: hidden to 2 * ffn; the gate first.
        down: ffn to hidden.
    """

    attention_norm: Tensor
    ffn_norm: Tensor
    qkv: Projection
    head_norm: Tensor | None
    attention_out: Projection
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights. ``head`` shares the embedding's memory when the two are tied.

    Attributes:
        embedding: [vocab, hidden].
        layers: in order.
        norm: [hidden].
        head: hidden to vocab.
        nbytes: bytes that the weights take.
        parameters: number of weights, a tied table counted once.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Projection
    nbytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step on the device; see StepPlan for the meaning and order of rows.

    Attributes:
        token_ids, positions, slots: int64 [T].
        slot_run: first slot when they ascend by one, else None.
        attention: covers the rows in order.
        logit_rows: int64 [R].
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    slot_run: int | None
    attention: Sequence[Attention]
    logit_rows: Tensor


class Llama:
    """The computation; holds weights, owns no cache."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, rope: Rope) -> None:
        self._config = config
        self._weights = weights
        self._rope = rope

    def forward(self, step: StepTensors, pool: KVPool) -> Tensor:
        """Run a step: writes K and V of its tokens and gives the logits asked for.

        Returns:
            float32 [R, vocab].
        """
        weights, eps = self._weights, self._config.norm_eps
        hidden = F.embedding(step.token_ids, weights.embedding)
        cosines, sines = self._rope.tables(step.positions)
        last = len(weights.layers) - 1
        for number, layer in enumerate(weights.layers):
            queries = self._project(
                layer, number, rms_norm(hidden, layer.attention_norm, eps), cosines, sines, step, pool
            )
            if number == last and step.logit_rows.shape[0] == 0:
                break
            parts = [attend(number, queries) for attend in step.attention]
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
            if number == last:
                # Nothing reads the other rows any more.
                mixed = mixed.index_select(0, step.logit_rows)
                hidden = hidden.index_select(0, step.logit_rows)
            hidden = hidden.add_(layer.attention_out(mixed))
            hidden = hidden.add_(self._feed_forward(layer, rms_norm(hidden, layer.ffn_norm, eps)))
        if step.logit_rows.shape[0] == 0:
            return hidden.new_empty((0, self._config.vocab_size), dtype=torch.float32)
        return weights.head(rms_norm(hidden, weights.norm, eps)).float()

    def _project(
        self,
        layer: LayerWeights,
        number: int,
        x: Tensor,
        cosines: Tensor,
        sines: Tensor,
        step: StepTensors,
        pool: KVPool,
    ) -> Tensor:
        """Queries [T, heads, head_size], rotated; keys and values go to the pool."""
        config = self._config
        projected = layer.qkv(x).view(x.shape[0], -1, config.head_size)
        rotated = projected[:, : config.heads + config.kv_heads]
        if layer.head_norm is not None:
            normed = rms_norm(rotated, None, config.norm_eps)
            torch.mul(normed, layer.head_norm, out=rotated)
        self._rope.rotate(rotated, cosines, sines)
        pool.write(number, projected[:, config.heads :], step.slots, step.slot_run)
        return projected[:, : config.heads]

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(x).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up))


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019), computed in float32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
