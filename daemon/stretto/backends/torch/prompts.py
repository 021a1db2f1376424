"""Prompts in bfloat16 by PyTorch, into the native kernels' KV memory.

Where a processor multiplies matrices of bfloat16 in hardware, long rows of tokens are computed far faster so than by the kernels, which are made
for few rows. Logits are never computed here: the last tokens of a prompt go to the kernels, with the accuracy that they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stretto.backends.base import Chunk, ProgressReport
from stretto.backends.chunks import StepLimits
from stretto.backends.torch.building import load_decoder
from stretto.backends.torch.linear import choose_projection
from stretto.backends.torch.native_pool import NativePool
from stretto.backends.torch.placing import place_step
from stretto.backends.torch.plan import plan_step
from stretto.backends.torch.runtime import translated
from stretto.weights.source import ModelSource

_CPU = torch.device("cpu")


class TorchPrompts:
    """See ``stretto.backends.native.prefill.Prompts``. Made and used on one thread; PyTorch's thread count is that thread's own."""

    def __init__(self, source: ModelSource, threads: int, report: ProgressReport) -> None:
        """Decode the weights. Raises StartupError, and what ``report`` raises."""
        torch.set_num_threads(threads)
        with torch.inference_mode():
            self._model = load_decoder(
                source,
                context_tokens=source.config.context_tokens,
                device=_CPU,
                dtype=torch.bfloat16,
                projection=choose_projection(_CPU, torch.bfloat16),
                report=report,
            )
        self._pool: NativePool | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self._model.nbytes

    def attach(self, memory: npt.NDArray[np.uint8], *, kv_dtype: str, block_tokens: int) -> None:
        """Write keys and values there from now on; see ``NativePool``."""
        (shape,) = self._model.layout.groups
        self._pool = NativePool(
            memory,
            kv_dtype=kv_dtype,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            block_tokens=block_tokens,
            dtype=torch.bfloat16,
        )

    def forward(self, batch: Sequence[Chunk]) -> None:
        """Compute keys and values of chunks that want no logits. Raises BackendFailure."""
        assert self._pool is not None
        limits = StepLimits(
            self._pool.block_tokens,
            (self._pool.blocks,),
            (None,),
            self._model.vocab_size,
            self._model.context_tokens,
        )
        plan = plan_step(batch, limits)
        with translated(f"a step of {len(plan.token_ids)} tokens in {len(batch)} sequences"):
            self._model.forward(place_step(plan, (self._pool,), _CPU, torch.bfloat16))
