"""MLXBackend: the Backend protocol over MLX and the models of mlx-lm. Importing this imports neither; ``load`` does."""

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
    from stretto.backends.mlx.runtime import Runtime
    from stretto.weights.checkpoint import Checkpoint

INSTALL = "pip install 'stretto[mlx]'"


class MLXBackend:
    """See ``stretto.backends.base.Backend``.

    Weights stay as the file packs them. A sequence's result does not depend on its company beyond floating point: which kernels are
    chosen, and so in which order sums are made, depends on how many rows a pass has.
    """

    def __init__(self, checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "auto") -> None:
        """Nothing is read or imported yet.

        Args:
            checkpoint: an opened model; stays the caller's to close, and must be open during ``load``.
            device: ``auto``, ``cpu``, ``mps`` (the GPU of Apple's chips), ``cuda`` or ``cuda:N``.
            dtype: ``auto`` (as the file has it), ``float32``, ``bfloat16`` or ``float16``; of what is not packed, activations and KV.
        """
        self._checkpoint = checkpoint
        self._device, self._dtype = device, dtype
        self._runtime: Runtime | None = None

    def load(self, report: ProgressReport) -> ModelSpec:
        """See Backend. Loading again replaces what was loaded.

        Raises:
            StartupError: ``backend_unavailable`` (no MLX, no such device), ``out_of_memory`` with the figures, ``model_invalid``,
                ``model_unsupported`` with what of the model cannot be served.
        """
        self.close()
        report("starting MLX", 0.0)
        try:
            from stretto.backends.mlx.runtime import Runtime
        except ImportError as error:
            raise StartupError(
                f"MLX cannot be imported ({error}).",
                code="backend_unavailable",
                remedy=f"Install it: {INSTALL}",
            ) from error
        self._runtime = Runtime(self._checkpoint, device=self._device, dtype=self._dtype, report=report)
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
        """See Backend: of each layer K, then of each layer V, [heads, block_tokens, head size] in the dtype of the cache."""
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
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def _loaded(self) -> Runtime:
        if self._runtime is None:
            raise BackendFailure("the model is not loaded")
        return self._runtime


def probe() -> BackendInfo:
    """Whether MLX and mlx-lm are there, and which devices they offer. Never raises."""
    try:
        # A finder may raise ValueError, and a broken installation nearly anything: the answer is the same.
        missing = [name for name in ("mlx", "mlx_lm") if importlib.util.find_spec(name) is None]
        if missing:
            return BackendInfo(
                "mlx", False, f"MLX is not installed ({', '.join(missing)}). Install it: {INSTALL}"
            )
        from stretto.backends.mlx.device import available_devices, mlx_version

        devices = available_devices()
    except Exception as error:
        return BackendInfo("mlx", False, f"MLX cannot be imported ({error}). Install it again: {INSTALL}")
    return BackendInfo("mlx", True, f"MLX {mlx_version()}", devices)
