"""The forward pass of a decoder, whatever its layers are.

Plain functions over tensors under ``torch.inference_mode``: no modules, no autograd, no shape that depends on a
maximum. Norms, softmax and the accumulation of products are in float32 whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.attention import Attention
from stretto.backends.torch.kv import Pool
from stretto.backends.torch.linear import Projection
from stretto.backends.torch.norm import Norm
from stretto.backends.torch.rope import Rope, Turn


@dataclass(frozen=True, slots=True)
class GroupTensors:
    """A step on the device as one layer group sees it.

    Attributes:
        pool: of the group.
        slots: int64 [T].
        slot_run: first slot when they ascend by one, else None.
        attention: covers the rows in order.
    """

    pool: Pool
    slots: Tensor
    slot_run: int | None
    attention: Sequence[Attention]


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step on the device; see StepPlan for the meaning and order of rows.

    Attributes:
        token_ids, positions: int64 [T].
        groups: one a layer group.
        logit_rows: int64 [R].
    """

    token_ids: Tensor
    positions: Tensor
    groups: tuple[GroupTensors, ...]
    logit_rows: Tensor


@dataclass(frozen=True, slots=True)
class Turned:
    """A step, and the turns of its tokens for each kind of rotary positions that the model has."""

    step: StepTensors
    turns: tuple[Turn, ...]


class Layer(Protocol):
    """One decoder layer, in two halves: the last layer's second half is computed for the rows whose logits are wanted alone."""

    stores: bool
    """Whether it makes keys and values of its own."""

    def attend(self, hidden: Tensor, turned: Turned, *, mix: bool) -> Tensor | None:
        """Store keys and values; with ``mix``, give attention's outputs [T, heads * head_size] before their projection.

        Args:
            hidden: [T, hidden].
        """
        ...

    def finish(self, hidden: Tensor, mixed: Tensor, inputs: Tensor | None) -> Tensor:
        """The layer's output.

        Args:
            hidden: [rows, hidden]; may be changed.
            mixed: as ``attend`` gave it, the same rows.
            inputs: [rows, size], the layer's own embedding of the tokens, if the model has those.
        """
        ...


class LayerInputs(Protocol):
    """Embeddings of the tokens for each layer."""

    def __call__(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """[T, layers, size] of a step's tokens and their embeddings [T, hidden]."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. ``head`` shares the embedding's memory when the two are tied.

    Attributes:
        embedding: [vocab, hidden].
        layers: in order.
        norm: of the last hidden state.
        head: hidden to vocab.
        inputs: the layers' own embeddings, if the model has those.
    """

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Norm
    head: Projection
    inputs: LayerInputs | None


class Decoder:
    """The computation; holds weights, owns no cache."""

    def __init__(
        self, weights: DecoderWeights, ropes: Sequence[Rope], *, scale: float, cap: float | None
    ) -> None:
        """``scale``: of the embeddings; ``cap``: of the logits."""
        self._weights = weights
        self._ropes = ropes
        self._scale = None if scale == 1.0 else torch.tensor(scale, dtype=weights.embedding.dtype)
        self._cap = cap
        stores = [number for number, layer in enumerate(weights.layers) if layer.stores]
        self._last_stored = stores[-1]

    def forward(self, step: StepTensors) -> Tensor:
        """Run a step: writes K and V of its tokens and gives the logits asked for.

        Returns:
            float32 [R, vocab].
        """
        weights = self._weights
        hidden = F.embedding(step.token_ids, weights.embedding)
        if self._scale is not None:
            hidden = hidden.mul_(self._scale)
        inputs = None if weights.inputs is None else weights.inputs(step.token_ids, hidden)
        turned = Turned(step, tuple(rope.tables(step.positions) for rope in self._ropes))
        silent = step.logit_rows.shape[0] == 0
        last = len(weights.layers) - 1
        for number, layer in enumerate(weights.layers):
            mixed = layer.attend(hidden, turned, mix=not (silent and number == self._last_stored))
            if mixed is None:
                break
            own = None if inputs is None else inputs[:, number]
            if number == last:
                # Nothing reads the other rows any more.
                mixed, hidden = (part.index_select(0, step.logit_rows) for part in (mixed, hidden))
                own = None if own is None else own.index_select(0, step.logit_rows)
            hidden = layer.finish(hidden, mixed, own)
        if silent:
            return hidden.new_empty((0, weights.embedding.shape[0]), dtype=torch.float32)
        logits = weights.head(weights.norm(hidden)).float()
        return logits if self._cap is None else logits.div_(self._cap).tanh_().mul_(self._cap)
