"""The attention function that models of ``transformers`` are given: theirs by its arguments, ours by where keys and values lie.

All tokens of a step are one row of the model's batch, whatever sequence they belong to: everything but attention looks at a token
alone, or at its position, which is given. Attention reads each sequence's own blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.attention import ScoreRule
from stretto.backends.torch.decoder import StepTensors

NAME = "stretto_paged"
"""Of the attention function, in the registry of ``transformers``."""

_BRIDGE = "stretto_bridge"


class NotComputable(Exception):
    """A model asks for what the function does not do; the text says what."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one layer asked of attention.

    Attributes:
        window: how far back it looks, or None.
        kv_heads, head_size: of its keys; its values are no wider.
    """

    window: int | None
    kv_heads: int
    head_size: int


@dataclass(slots=True)
class Bridge:
    """Between a model and the step that is computed.

    Attributes:
        seen: what each layer asked for, by its number, noted while there is no step.
        places: layer group of each layer, and its number in there.
        step: that is computed.
    """

    seen: dict[int, Seen] = field(default_factory=dict)
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    step: StepTensors | None = None

    def attach(self, model: Any) -> None:
        """Let every module of a model find it."""
        for module in model.modules():
            module.__dict__[_BRIDGE] = self


def register() -> None:
    """Make the function known to ``transformers``."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, note_mask)


def note_mask(*_: Any, local_size: int | None = None, device: Any = "cpu", **__: Any) -> Tensor:
    """In place of a mask: how far back a layer looks, or 0. Masks are made from the step's block tables instead."""
    return torch.full((1, 1, 1, 1), local_size or 0, dtype=torch.int64, device=device)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer; the names of the arguments are those of ``transformers``.

    Args:
        query: [1, heads, T, head_size]; key, value: [1, kv_heads, T, size].

    Returns:
        [1, T, heads, size of a value], and nothing for the weights.
    """
    bridge: Bridge = getattr(module, _BRIDGE)
    layer = getattr(module, "layer_idx", None)
    if bridge.step is None:
        bridge.seen[_number(layer)] = _look(module, key, value, attention_mask, sliding_window, others)
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[-1])), None
    group, place = bridge.places[_number(layer)]
    step = bridge.step.groups[group]
    size, width = key.shape[-1], value.shape[-1]
    if width < size:
        value = F.pad(value, (0, size - width))
    step.pool.write(place, torch.cat((key, value), 1)[0].transpose(0, 1), step.slots, step.slot_run)
    queries, rule = query[0].transpose(0, 1), ScoreRule(scaling, softcap)
    parts = [call(place, queries, rule) for call in step.attention]
    out = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(1, query.shape[2], query.shape[1], size)
    return out[..., :width], None


def _number(layer: object) -> int:
    if type(layer) is not int:
        raise NotComputable("its attention does not say which layer it is of")
    return layer


def _look(
    module: Any,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sliding_window: int | None,
    others: Mapping[str, Any],
) -> Seen:
    if getattr(module, "is_causal", True) is False:
        raise NotComputable("its attention is not causal")
    for name in ("s_aux", "position_bias", "head_mask", "alibi"):
        if others.get(name) is not None:
            raise NotComputable(f"its attention has {name}")
    if value.shape[-1] > key.shape[-1]:
        raise NotComputable("its values are wider than its keys")
    by_mask = 0 if mask is None else int(mask.flatten()[0])
    windows = {size for size in (by_mask, sliding_window) if size}
    if len(windows) > 1:
        raise NotComputable(f"a layer looks back {' and '.join(map(str, sorted(windows)))} positions")
    return Seen(next(iter(windows), None), key.shape[1], key.shape[-1])
