"""Which layers share a block table, and where each layer's keys and values lie. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.backends.base import LayerGroup
from stretto.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Layers with the same KV geometry."""

    window_tokens: int | None
    kv_heads: int
    head_size: int
    layers: int

    def token_bytes(self, itemsize: int) -> int:
        """Bytes of K and V for one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * itemsize


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Where keys and values lie.

    Attributes:
        groups: in the order of ``ModelSpec.layer_groups``.
        places: for each layer the group that it reads, and its number in there; layers that share keys and values share both.
    """

    groups: tuple[GroupShape, ...]
    places: tuple[tuple[int, int], ...]

    def layer_groups(self, itemsize: int) -> tuple[LayerGroup, ...]:
        """As the engine knows them; ``itemsize``: bytes of a value."""
        return tuple(
            LayerGroup(
                _name(shape, self.groups[:number]),
                shape.layers,
                shape.kv_heads,
                shape.head_size,
                shape.window_tokens,
                shape.token_bytes(itemsize),
            )
            for number, shape in enumerate(self.groups)
        )


Geometry = tuple[int | None, int, int]
"""Window, KV heads and head size of a layer."""


def lay_out(config: ModelConfig) -> KVLayout:
    """Group a model's layers by window, KV heads and head size."""
    layers = [config.attention(number) for number in range(config.layers)]
    return group_layers(
        [
            layer.kv_layer
            if layer.kv_layer is not None
            else (layer.window_tokens, layer.kv_heads, layer.head_size)
            for layer in layers
        ]
    )


def group_layers(layers: Sequence[Geometry | int]) -> KVLayout:
    """Group layers of equal geometry; a number stands for a layer that shares the keys and values of that one before it."""
    found: dict[Geometry, int] = {}
    counts: list[int] = []
    places: list[tuple[int, int]] = []
    for layer in layers:
        if isinstance(layer, int):
            places.append(places[layer])
            continue
        group = found.setdefault(layer, len(found))
        if group == len(counts):
            counts.append(0)
        places.append((group, counts[group]))
        counts[group] += 1
    return KVLayout(
        tuple(GroupShape(*key, count) for key, count in zip(found, counts, strict=True)), tuple(places)
    )


def _name(shape: GroupShape, before: tuple[GroupShape, ...]) -> str:
    kind = "full" if shape.window_tokens is None else f"sliding-{shape.window_tokens}"
    same = sum(other.window_tokens == shape.window_tokens for other in before)
    return kind if not same else f"{kind}-{same + 1}"
