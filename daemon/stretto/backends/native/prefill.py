"""Which tokens of a step are a prompt's, and who computes them: the kernels, or PyTorch where it was measured to be faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stretto.backends.base import BackendFailure, Chunk, ProgressReport
from stretto.backends.prefill_record import PrefillRecord, Rates
from stretto.errors import StartupError

LEAST_ROWS = 32
"""Fewer tokens of a sequence in a step are the kernels' anyway: PyTorch's cost of a call would be most of it."""

WORTH = 1.2
"""How many times as fast PyTorch must be: it takes two more bytes of memory a weight."""

_TRIAL_TOKENS = (16, 128, 128)
"""Tokens of each trial; the first one is to warm up."""


class Prompts(Protocol):
    """Computes keys and values of prompts into the cache of the kernels.

    Attributes:
        nbytes: memory of its weights.
    """

    @property
    def nbytes(self) -> int: ...

    def attach(self, memory: npt.NDArray[np.uint8], *, kv_dtype: str, block_tokens: int) -> None: ...

    def forward(self, batch: Sequence[Chunk]) -> None: ...


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What was asked for, and how to get it.

    Attributes:
        make: loads the weights for prompts; raises StartupError. None leaves prompts to the kernels.
        asked: whether that must be used; else it is where it was measured to be worth it.
        reason: why there is nothing to load.
        record: of the measurement, when not asked.
    """

    make: Callable[[ProgressReport], Prompts] | None = None
    asked: bool = False
    reason: str = ""
    record: PrefillRecord | None = None


class Prefill:
    """PyTorch beside the kernels, from the load until it turns out not to be worth it."""

    def __init__(self, plan: PrefillPlan, clock: Callable[[], float] = time.perf_counter) -> None:
        self._plan = plan
        self._clock = clock
        self._prompts: Prompts | None = None
        self._known: Rates | None = None
        self._tokens = 0
        self.reason = ""

    @property
    def nbytes(self) -> int:
        """Memory of the weights that it keeps."""
        return 0 if self._prompts is None else self._prompts.nbytes

    def load(self, report: ProgressReport) -> None:
        """Load, unless it is known not to be worth it. Raises StartupError where it was asked for; what ``report`` raises passes through."""
        self.close()
        if self._plan.make is None:
            self.reason = self._plan.reason
            return
        self._known = None if self._plan.record is None else self._plan.record.read()
        if self._known is not None and not worth(self._known):
            self.reason = said(self._known)
            return
        try:
            self._prompts = self._plan.make(report)
        except StartupError as error:
            if self._plan.asked:
                raise
            self.reason = f"PyTorch could not be loaded beside the kernels: {error}"

    def attach(
        self,
        memory: npt.NDArray[np.uint8],
        native: Callable[[Sequence[Chunk]], object],
        *,
        kv_dtype: str,
        block_tokens: int,
        vocab: int,
    ) -> None:
        """Take the cache, which holds nothing yet; the first time on a machine, try who is faster there.

        Args:
            memory: uint8 [layers, blocks, bytes of a block].
            native: computes a step by the kernels.
        """
        if self._prompts is None:
            return
        self._prompts.attach(memory, kv_dtype=kv_dtype, block_tokens=block_tokens)
        if self._plan.asked:
            self.reason = "it was asked for"
            return
        if self._known is None:
            self._known = self._measure(native, vocab, blocks=memory.shape[1], block_tokens=block_tokens)
            if self._plan.record is not None:
                self._plan.record.write(self._known)
        self.reason = said(self._known)
        if not worth(self._known):
            self.close()

    def _measure(
        self, native: Callable[[Sequence[Chunk]], object], vocab: int, *, blocks: int, block_tokens: int
    ) -> Rates:
        """In turns, so that a machine that is busy for a while is so for both; the better of two counts."""
        assert self._prompts is not None
        best = {"native": 0.0, "torch": 0.0}
        for tokens in _TRIAL_TOKENS:
            tokens = min(tokens, blocks * block_tokens)
            chunk = Chunk(
                np.arange(tokens, dtype=np.int32) % vocab,
                0,
                (np.arange(-(-tokens // block_tokens), dtype=np.int32),),
                0,
            )
            for name, forward in (("native", native), ("torch", self._prompts.forward)):
                began = self._clock()
                forward((chunk,))
                took_s = self._clock() - began
                if tokens > _TRIAL_TOKENS[0]:
                    best[name] = max(best[name], tokens / max(took_s, 1e-9))
        return Rates(best["native"], best["torch"])

    def take(self, batch: Sequence[Chunk]) -> Sequence[Chunk]:
        """Compute what is PyTorch's of a step, after ``attach``; the rest is the kernels', with all logits, in the same order.

        Raises:
            BackendFailure: see ``split`` and ``Prompts``.
        """
        if self._prompts is None:
            return batch
        mine, rest = split(batch)
        if mine:
            self._prompts.forward(mine)
            self._tokens += sum(len(chunk.token_ids) for chunk in mine)
        return rest

    def stats(self) -> dict[str, object]:
        """For the status page."""
        return {
            "by": "native" if self._prompts is None else "torch",
            "reason": self.reason,
            "torch_bytes": self.nbytes,
            "torch_tokens": self._tokens,
        }

    def close(self) -> None:
        """Let go of the weights. Idempotent."""
        self._prompts = None


def split(batch: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """Of each long chunk the tokens whose logits nobody wants, and all else; both in the order of the batch.

    Raises:
        BackendFailure: a chunk whose number of logit rows makes no sense.
    """
    mine, rest = [], []
    for number, chunk in enumerate(batch):
        rows = len(chunk.token_ids)
        if not 0 <= chunk.logit_rows <= rows:
            raise BackendFailure(
                f"chunk {number} of the step: logit_rows is {chunk.logit_rows}, with {rows} tokens"
            )
        silent = rows - chunk.logit_rows
        if silent < LEAST_ROWS:
            rest.append(chunk)
            continue
        mine.append(replace(chunk, token_ids=chunk.token_ids[:silent], logit_rows=0))
        if chunk.logit_rows:
            rest.append(replace(chunk, token_ids=chunk.token_ids[silent:], start=chunk.start + silent))
    return mine, rest


def worth(rates: Rates) -> bool:
    """Whether PyTorch is to compute prompts."""
    return rates.torch >= WORTH * rates.native


def said(rates: Rates) -> str:
    """The measurement in words."""
    return (
        f"measured here: {rates.native:.0f} tokens/s by the kernels, {rates.torch:.0f} by PyTorch in bfloat16"
    )
