"""Which caches a model asks for, and what each of them holds: found out by building one pass, of which nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from stretto.backends.base import LayerGroup
from stretto.backends.mlx.cache import Mask, PagedCache
from stretto.backends.mlx.pool import Geometry
from stretto.backends.mlx.zoo import CacheKind, CacheTree, NotInZoo, cache_tree, own_caches


@dataclass(frozen=True, slots=True)
class Leaf:
    """One cache: its layer group, and its number within that."""

    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The caches of a model, in the order in which it takes them.

    Attributes:
        leaves: one a cache; several where a layer keeps several.
        groups: geometry of each layer group.
        vocab_size: width of the logits.
    """

    leaves: tuple[Leaf | tuple[Leaf, ...], ...]
    groups: tuple[Geometry, ...]
    vocab_size: int

    def layers(self, group: int) -> int:
        """How many caches a group has."""
        return sum(leaf.group == group for leaf in self._all())

    def make_caches(self) -> Caches:
        """Caches to hand to the model."""
        return Caches(self.leaves)

    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """As the engine knows them."""
        found = []
        for number, geometry in enumerate(self.groups):
            window = geometry.window_tokens
            kind = "full" if window is None else f"sliding-{window}"
            same = sum(other.window_tokens == window for other in self.groups[:number])
            found.append(
                LayerGroup(
                    kind if not same else f"{kind}-{same + 1}",
                    self.layers(number),
                    geometry.key_heads,
                    geometry.key_size,
                    window,
                    self.layers(number) * geometry.token_bytes,
                )
            )
        return tuple(found)

    def group_of_layers(self) -> tuple[int, ...]:
        """The layer group of each layer's first cache."""
        return tuple(leaf.group if isinstance(leaf, Leaf) else leaf[0].group for leaf in self.leaves)

    def _all(self) -> Iterator[Leaf]:
        for leaf in self.leaves:
            yield from (leaf,) if isinstance(leaf, Leaf) else leaf


class Caches:
    """What the model is given, and the same by layer group."""

    def __init__(self, leaves: Sequence[Leaf | tuple[Leaf, ...]]) -> None:
        self.by_group: dict[int, list[PagedCache]] = {}
        self.for_model: list[PagedCache | tuple[PagedCache, ...]] = [
            self._make(leaf) if isinstance(leaf, Leaf) else tuple(self._make(part) for part in leaf)
            for leaf in leaves
        ]

    def _make(self, leaf: Leaf) -> PagedCache:
        cache = PagedCache(leaf.layer)
        self.by_group.setdefault(leaf.group, []).append(cache)
        return cache


@dataclass(slots=True)
class _Recorder:
    """Stands for a cache before there is one, and notes what is stored in it."""

    kind: CacheKind
    stored: list[Geometry] = field(default_factory=list)
    offset: int = 0

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """The mask of one token that sees itself."""
        return mx.ones((N, N), dtype=mx.bool_) if return_array else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Note the shapes."""
        for what in (keys, values):
            if what.ndim != 4 or what.shape[0] != 1 or what.shape[2] != 1:
                raise NotInZoo(
                    f"one token stores an array of the shape {list(what.shape)}, not one row a head"
                )
        if keys.dtype != values.dtype:
            raise NotInZoo(f"its keys are {keys.dtype} and its values {values.dtype}")
        heads, sizes = (keys.shape[1], values.shape[1]), (keys.shape[3], values.shape[3])
        self.stored.append(
            Geometry(self.kind.window_tokens, heads[0], sizes[0], heads[1], sizes[1], keys.dtype)
        )
        return keys, values


def find_layout(model: Any) -> Layout:
    """Look at what a model's layers store. Builds a pass of one token, and computes nothing.

    Raises:
        NotInZoo: they keep something else than keys and values by position, or ask more of a cache than that.
    """
    kinds: list[CacheTree] = [cache_tree(cache) for cache in own_caches(model)]
    recorders = [
        _Recorder(kind) if isinstance(kind, CacheKind) else tuple(_Recorder(part) for part in kind)
        for kind in kinds
    ]
    try:
        logits = model(mx.array([[0]], dtype=mx.int32), cache=list(recorders))
    except NotInZoo:
        raise
    except Exception as error:
        raise NotInZoo(
            f"its code fails over a cache of keys and values by position ({type(error).__name__}: {error})"
        ) from error
    groups: list[Geometry] = []
    counts: list[int] = []

    def leaf(recorder: _Recorder) -> Leaf:
        if len(recorder.stored) != 1:
            raise NotInZoo(f"a cache of its is filled {len(recorder.stored)} times for one token")
        geometry = recorder.stored[0]
        if geometry not in groups:
            groups.append(geometry)
            counts.append(0)
        group = groups.index(geometry)
        counts[group] += 1
        return Leaf(group, counts[group] - 1)

    leaves = tuple(
        leaf(recorder) if isinstance(recorder, _Recorder) else tuple(leaf(part) for part in recorder)
        for recorder in recorders
    )
    if not groups:
        raise NotInZoo("it keeps no keys and values")
    return Layout(leaves, tuple(groups), int(logits.shape[-1]))
