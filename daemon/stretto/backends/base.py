"""What a backend must do: the small protocol that echo, torch and MLX share.

A backend owns the weights and the KV memory, and nothing else: no scheduling, no block accounting, no sampling. All its
methods, ``load`` included, are called on the one engine thread, which lives as long as the daemon (CUDA contexts and MLX
streams are bound to the thread that made them).

The KV cache is paged. The engine hands out block numbers; the backend keeps, per layer group, room for ``blocks`` blocks of
``block_tokens`` tokens each. Position ``p`` of a sequence lives in block ``table[p // block_tokens]`` at offset
``p % block_tokens``. The engine prefers runs of consecutive block numbers, so a backend may take the fast way when a
table is one run, and must be right when it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with the same KV geometry; they share one block table.

    Attributes:
        name: e.g. ``full`` or ``sliding``.
        layers: how many layers are in the group.
        kv_heads: KV heads a layer.
        head_size: values a head.
        window_tokens: how far back attention reaches, or None for full attention.
        kv_bytes_per_token: bytes of K and V for one token over all layers of the group.
    """

    name: str
    layers: int
    kv_heads: int
    head_size: int
    window_tokens: int | None
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine and the status page need to know of a loaded model.

    Attributes:
        family: architecture, e.g. ``llama`` or ``echo``.
        vocab_size: width of the logits.
        context_tokens: the longest context the model was made for.
        layer_groups: at least one.
        dtype: of the computation, e.g. ``float32``.
        device: e.g. ``cpu`` or ``cuda:0``.
        parameters: number of weights, 0 if unknown.
        weight_bytes: memory that the weights take.
        kv_dtype: what keys and values are kept in, where that is not ``dtype``; else empty.
    """

    family: str
    vocab_size: int
    context_tokens: int
    layer_groups: tuple[LayerGroup, ...]
    dtype: str
    device: str
    parameters: int = 0
    weight_bytes: int = 0
    kv_dtype: str = ""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one token over all layer groups."""
        return sum(group.kv_bytes_per_token for group in self.layer_groups)


@dataclass(frozen=True, slots=True)
class KVPlan:
    """How much KV memory to allocate, once, for life.

    Attributes:
        block_tokens: tokens a block.
        blocks: number of blocks for each layer group, in the order of ``ModelSpec.layer_groups``.
    """

    block_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step: a chunk of its prompt, or one decode token.

    Attributes:
        token_ids: int32 [n], n >= 1: the tokens to run.
        start: position of the first of them; positions before it are already in the KV cache.
        block_tables: one int32 [m] a layer group, long enough for position start + n - 1. In a group with a window, blocks that
            hold nothing that the tokens attend to may be any number, -1 too.
        logit_rows: for how many of the last tokens logits are wanted (0 in the middle of a prompt, 1 for a decode).
    """

    token_ids: Int32Array
    start: int
    block_tables: tuple[Int32Array, ...]
    logit_rows: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes in use and at hand on the device that holds the KV cache."""

    weights_bytes: int
    kv_bytes: int
    free_bytes: int
    total_bytes: int


class BackendFailure(Exception):
    """A step could not be computed. The sequences in it are failed, later steps may go on."""


class BackendOutOfMemory(BackendFailure):
    """A step did not fit in memory."""


class BackendLost(BackendFailure):
    """The device is gone (driver reset): nothing works until the backend is loaded again."""


ProgressReport = Callable[[str, float], None]
"""Called as ``report(phase, fraction)`` while loading; raising from it stops the load."""


@runtime_checkable
class Backend(Protocol):
    """See the module's text. ``load``, then ``allocate``, then any number of ``forward``; ``close`` ends it."""

    def load(self, report: ProgressReport) -> ModelSpec:
        """Read the weights. Raises ``stretto.errors.StartupError`` when that cannot be done."""
        ...

    def allocate(self, plan: KVPlan) -> None:
        """Allocate the KV memory. Raises ``BackendOutOfMemory`` when it does not fit."""
        ...

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """Run one step over a ragged batch of prefill chunks and decodes; writes their K and V.

        Returns:
            float32 [sum of logit_rows, vocab_size], the chunks in the order given, each chunk's rows in token order.

        Raises:
            BackendFailure: see its kinds.
        """
        ...

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of one layer group, (source, destination) by (source, destination)."""
        ...

    def read_block(self, group: int, block: int) -> bytes:
        """One block's K and V as bytes, for the prefix store."""
        ...

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """Put back what ``read_block`` gave."""
        ...

    def memory(self) -> MemoryReport:
        """What is in use and what is free now."""
        ...

    def stats(self) -> dict[str, object]:
        """Counters and facts for ``GET /admin/status``; plain JSON values."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What ``stretto doctor`` and ``--backend auto`` need to know without loading anything.

    Attributes:
        name: ``torch``, ``echo``, ...
        available: whether it can be used on this machine.
        reason: why (not); one sentence.
        devices: devices it could use, best first.
    """

    name: str
    available: bool
    reason: str
    devices: tuple[str, ...] = field(default=())
