"""The backend's inside once MLX is there: a loaded model, its KV pools, and steps over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx

from stretto.backends.base import (
    BackendFailure,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
    KVPlan,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.backends.chunks import StepLimits, check_step
from stretto.backends.host import shown
from stretto.backends.mlx import config as model_config
from stretto.backends.mlx.device import (
    OwnStreams,
    choose_device,
    device_memory,
    memory_facts,
    metal_facts,
    mlx_version,
)
from stretto.backends.mlx.layout import find_layout
from stretto.backends.mlx.loading import load_model
from stretto.backends.mlx.pool import GroupPool
from stretto.backends.mlx.selfcheck import COVERED, check_model
from stretto.backends.mlx.steps import Steps
from stretto.backends.mlx.zoo import NotInZoo, zoo_version
from stretto.weights.checkpoint import Checkpoint
from stretto.weights.faults import invalid, unsupported

_OUT_OF_MEMORY = ("unable to allocate", "insufficient memory", "out of memory", "maximum allowed buffer size")
ALONE_BY_TEST = {"gemma2": "mlx-lm's model takes one sequence a pass"}
"""Of the model types that tests cover, those that cannot compute several sequences in one pass, and why."""


class Runtime:
    """A loaded model. Made, used and closed on one thread, whose streams it brings."""

    def __init__(self, checkpoint: Checkpoint, *, device: str, dtype: str, report: ProgressReport) -> None:
        """Choose the device, then load. Raises StartupError, and what ``report`` raises."""
        self._device = choose_device(device)
        self._streams = OwnStreams(self._device)
        self._pools: list[GroupPool] = []
        self._limits: StepLimits | None = None
        self._steps = self._tokens = 0
        try:
            with mx.stream(self._streams.stream):
                self._load(checkpoint, dtype, report)
        except BaseException:
            self._streams.close()
            raise

    def _load(self, checkpoint: Checkpoint, dtype: str, report: ProgressReport) -> None:
        self._loaded = load_model(checkpoint, device=self._device, dtype=dtype, report=report)
        where = checkpoint.path / "config.json"
        family = self._loaded.family
        try:
            self._layout = find_layout(self._loaded.model)
            alone = ALONE_BY_TEST.get(family, "")
            if family not in COVERED:
                report("comparing with mlx-lm's own cache", 0.0)
                alone = check_model(self._loaded.model, self._layout)
        except NotInZoo as error:
            raise unsupported(
                where,
                f"the model type {family!r} cannot be served: {error}",
                remedy="Choose a model whose layers attend to keys and values.",
            ) from error
        windows = [geometry.window_tokens is not None for geometry in self._layout.groups]
        model_config.check_layer_types(
            where, self._loaded.config, [windows[group] for group in self._layout.group_of_layers()]
        )
        context = model_config.context_tokens(self._loaded.config, self._loaded.model)
        if context is None:
            raise invalid(
                where, "it does not say how long a context the model was made for (max_position_embeddings)"
            )
        window = model_config.unused_window(self._loaded.config, windows=any(windows))
        self._context_tokens = context if window is None else min(context, window)
        self._context_reason = "the model's own"
        if self._context_tokens < context:
            self._context_reason = (
                f"mlx-lm computes no sliding window for {family}; within its {window} tokens it needs none"
            )
        self._alone = alone
        self._stepper = Steps(self._loaded.model, self._layout, together=not alone)

    @property
    def spec(self) -> ModelSpec:
        """See ModelSpec."""
        loaded = self._loaded
        return ModelSpec(
            family=loaded.family,
            vocab_size=self._layout.vocab_size,
            context_tokens=self._context_tokens,
            layer_groups=self._layout.layer_groups(),
            dtype=loaded.dtype,
            device=self._device.name,
            parameters=loaded.parameters,
            weight_bytes=loaded.nbytes,
        )

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        groups = self._layout.groups
        if len(plan.blocks) != len(groups) or plan.block_tokens < 1 or min(plan.blocks, default=0) < 1:
            raise BackendFailure(
                f"a KV plan for this model has {len(groups)} layer groups and at least one block in each, not {plan}"
            )
        self._pools, self._limits = [], None
        mx.clear_cache()
        wanted = sum(
            blocks * plan.block_tokens * group.kv_bytes_per_token
            for blocks, group in zip(plan.blocks, self.spec.layer_groups, strict=True)
        )
        free = device_memory(self._device).free_bytes
        if wanted > free:
            # MLX on a CPU does not survive an allocation that fails.
            raise BackendOutOfMemory(
                f"the KV cache of {'+'.join(map(str, plan.blocks))} blocks of {plan.block_tokens} tokens takes {shown(wanted)};"
                f" {shown(free)} are free on {self._device.name}"
            )
        with self._translated(f"allocating {shown(wanted)} of KV cache"):
            pools = [
                GroupPool(
                    geometry,
                    layers=self._layout.layers(number),
                    block_tokens=plan.block_tokens,
                    blocks=blocks,
                )
                for number, (geometry, blocks) in enumerate(zip(groups, plan.blocks, strict=True))
            ]
            for pool in pools:
                mx.eval(*pool.arrays())
        self._pools = pools
        self._limits = StepLimits(
            plan.block_tokens,
            plan.blocks,
            tuple(geometry.window_tokens for geometry in groups),
            self._layout.vocab_size,
            self._context_tokens,
        )

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        self.pool(0)
        assert self._limits is not None
        check_step(batch, self._limits)
        tokens = sum(len(chunk.token_ids) for chunk in batch)
        with self._translated(f"a step of {tokens} tokens in {len(batch)} sequences"):
            logits = self._stepper.run(batch, self._pools)
        self._steps += 1
        self._tokens += tokens
        return logits

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """See Backend."""
        pool = self.pool(group)
        with self._translated("copying blocks"):
            pool.copy(pairs)

    def read_block(self, group: int, block: int) -> bytes:
        """See Backend."""
        pool = self.pool(group)
        with self._translated("reading a block"):
            return pool.read(block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """See Backend."""
        pool = self.pool(group)
        with self._translated("writing a block"):
            pool.write_block(block, data)

    def pool(self, group: int) -> GroupPool:
        """A layer group's pool. Raises BackendFailure before ``allocate``, and for a group there is not."""
        if not 0 <= group < len(self._layout.groups):
            raise BackendFailure(
                f"layer group {group} does not exist; this model has {len(self._layout.groups)}, from number 0"
            )
        if not self._pools:
            raise BackendFailure("no KV memory has been allocated")
        return self._pools[group]

    def memory(self) -> MemoryReport:
        """See Backend."""
        memory = device_memory(self._device)
        return MemoryReport(self._loaded.nbytes, self._kv_bytes, memory.free_bytes, memory.total_bytes)

    def stats(self) -> dict[str, object]:
        """Facts with their reasons, and counters since load."""
        metal = metal_facts(self._device)
        return {
            "device": self._device.name,
            "device_reason": self._device.reason,
            "dtype": self._loaded.dtype,
            "dtype_reason": self._loaded.dtype_reason,
            "packing": self._loaded.packing,
            "context_reason": self._context_reason,
            "sequences_a_pass": self._alone or "several",
            "mlx": mlx_version(),
            "mlx_lm": zoo_version(),
            "weights_bytes": self._loaded.nbytes,
            "kv_bytes": self._kv_bytes,
            "memory": {**memory_facts(), "kept_bytes_limit": self._streams.kept_bytes_limit},
            **({"metal": metal} if metal is not None else {}),
            "steps": self._steps,
            "tokens": self._tokens,
            "passes": self._stepper.passes,
            "padded_tokens": self._stepper.padded_tokens,
        }

    def close(self) -> None:
        """Give weights, KV and streams back. Not to be used afterwards."""
        self._pools = []
        del self._stepper, self._loaded
        self._streams.close()

    @property
    def _kv_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Run on the own stream, and turn what MLX and mlx-lm raise into the backend's failures.

        The pools may then hold writes that were begun and not computed. If those cannot be completed, the KV memory is lost.
        """
        try:
            with mx.stream(self._streams.stream):
                yield
        except BackendFailure:
            raise
        except Exception as error:
            failure = translate(error, doing)
            try:
                with mx.stream(self._streams.stream):
                    for pool in self._pools:
                        mx.eval(*pool.arrays())
            except Exception as lost:
                raise BackendLost(f"{failure}; the KV memory was lost with it ({lost})") from error
            raise failure from error


def translate(error: Exception, doing: str) -> BackendFailure:
    """Which failure an exception of MLX is; it has no types of its own for them."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    kind: type[BackendFailure] = BackendFailure
    if isinstance(error, MemoryError) or any(mark in text.lower() for mark in _OUT_OF_MEMORY):
        kind = BackendOutOfMemory
    return kind(f"{doing} failed: {text}")
