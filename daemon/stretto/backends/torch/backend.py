"""TorchBackend: the Backend protocol over PyTorch. Importing this does not import PyTorch; ``load`` does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretto.backends.base import (
    BackendFailure,
    BackendInfo,
    Chunk,
    Float32Array,
    KVPlan,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.errors import StartupError

if TYPE_CHECKING:
    from stretto.backends.torch.runtime import Runtime
    from stretto.weights.foreign import ForeignCheckpoint
    from stretto.weights.source import ModelSource

INSTALL = "pip install 'stretto[torch]'"


class TorchBackend:
    """See ``stretto.backends.base.Backend``.

    A sequence's result does not depend on its company beyond floating point: every row is computed from its own
    sequence alone, but how many rows a product has decides how its sums are ordered.
    """

    def __init__(
        self,
        source: ModelSource | ForeignCheckpoint,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        context_tokens: int | None = None,
        offload: bool = False,
        gpu_layers: int | None = None,
    ) -> None:
        """Nothing is read or imported yet.

        Args:
            source: an opened model, or one that ``transformers`` is to compute; stays the caller's to close, and must be open during ``load``.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``; of weights, activations and KV.
            threads: compute threads on the CPU; None chooses.
            context_tokens: the longest sequence there will be; None for the model's context. Models with LongRoPE turn by it.
            offload: layers from ``gpu_layers`` on (None: those that do not fit) keep their matrices in the host's memory.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; it is a whole number from 1")
        self._source = source
        self._device, self._dtype, self._threads = device, dtype, threads
        self._context_tokens = context_tokens
        self._offload, self._gpu_layers = offload, gpu_layers
        self._runtime: Runtime | None = None

    def load(self, report: ProgressReport) -> ModelSpec:
        """See Backend. Loading again replaces what was loaded.

        Raises:
            StartupError: ``backend_unavailable`` (no PyTorch, no such device), ``out_of_memory`` with the figures,
                ``model_invalid``.
        """
        self.close()
        report("starting PyTorch", 0.0)
        try:
            from stretto.backends.torch.offload import Offload
            from stretto.backends.torch.runtime import Runtime
        except ImportError as error:
            raise unimportable(error) from error
        try:
            self._runtime = Runtime(
                self._source,
                device=self._device,
                dtype=self._dtype,
                threads=self._threads,
                context_tokens=self._context_tokens,
                offload=Offload(self._gpu_layers) if self._offload else None,
                report=report,
            )
        except BaseException:
            self.close()
            raise
        return self._runtime.spec

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        self._loaded().allocate(plan)

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        return self._loaded().forward(batch)

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """See Backend."""
        self._loaded().copy_blocks(group, pairs)

    def read_block(self, group: int, block: int) -> bytes:
        """See Backend: [layers, 2 (K, V), kv_heads, block_tokens, head_size] in the dtype of the computation."""
        return self._loaded().read_block(group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """See Backend."""
        self._loaded().write_block(group, block, data)

    def memory(self) -> MemoryReport:
        """See Backend."""
        return self._loaded().memory()

    def stats(self) -> dict[str, object]:
        """See Backend; empty of counters before ``load``."""
        if self._runtime is None:
            return {"loaded": False}
        return {"loaded": True, **self._runtime.stats()}

    def close(self) -> None:
        """See Backend. Weights and KV are freed; ``load`` may be called again."""
        had = self._runtime is not None
        self._runtime = None
        if had:
            from stretto.backends.torch.runtime import release

            release()

    def _loaded(self) -> Runtime:
        if self._runtime is None:
            raise BackendFailure("the model is not loaded")
        return self._runtime


def unimportable(error: ImportError) -> StartupError:
    """What a start ends with that needs PyTorch, and cannot import it."""
    return StartupError(
        f"PyTorch cannot be imported ({error}).", code="backend_unavailable", remedy=f"Install it: {INSTALL}"
    )


def probe() -> BackendInfo:
    """Whether PyTorch is there, and which devices it offers. Never raises."""
    try:
        # A finder may raise ValueError, and a broken installation nearly anything: the answer is the same.
        if importlib.util.find_spec("torch") is None:
            return BackendInfo("torch", False, f"PyTorch is not installed. Install it: {INSTALL}")
        import torch

        from stretto.backends.torch.device import available_devices

        devices = available_devices()
    except Exception as error:
        return BackendInfo(
            "torch", False, f"PyTorch cannot be imported ({error}). Install it again: {INSTALL}"
        )
    return BackendInfo("torch", True, f"PyTorch {torch.__version__}", devices)
