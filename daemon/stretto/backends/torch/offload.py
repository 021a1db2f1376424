"""Layers whose matrices stay in the host's memory. Their keys, values and norms lie on the device like all others.

A product of few rows is made by the host, to which only those rows travel; for many rows the matrix itself is sent to the device, once for
all of them. From how many rows on that is faster is measured at load, on the first matrix.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.backends.torch.linear import Projection

MakeProjection = Callable[[Tensor, Tensor | None], Projection]

_TRIED_ROWS = (1, 4, 16, 64, 256)
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Offload:
    """What was asked for.

    Attributes:
        gpu_layers: so many layers, from the first on, have their matrices on the device; None for as many as fit.
        stream_from_rows: rows of a product from which on its matrix is sent to the device; None measures it.
    """

    gpu_layers: int | None = None
    stream_from_rows: int | None = None


class OffloadedProjection:
    """A matrix in the host's memory, for inputs and outputs on the device."""

    __slots__ = ("_bias", "_device", "_host", "_make", "_stream_from", "_weight")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        device: torch.device,
        on_device: MakeProjection,
        on_host: MakeProjection,
        stream_from_rows: int,
    ) -> None:
        """``weight``, ``bias``: in the host's memory."""
        self._weight, self._bias = weight, bias
        self._device = device
        self._make = on_device
        self._host = on_host(weight, bias)
        self._stream_from = stream_from_rows

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out]."""
        return self.streamed(x) if x.shape[0] >= self._stream_from else self.hosted(x)

    def hosted(self, x: Tensor) -> Tensor:
        """The product, made by the host."""
        return self._host(x.to(self._weight.device)).to(self._device)

    def streamed(self, x: Tensor) -> Tensor:
        """The product, made by the device after the matrix has been sent."""
        bias = None if self._bias is None else self._bias.to(self._device, non_blocking=True)
        return self._make(self._weight.to(self._device, non_blocking=True), bias)(x)


class Offloader:
    """Makes the offloaded projections of a model, and remembers what it chose.

    Attributes:
        host: where their matrices lie.
        nbytes: of the matrices that it holds.
    """

    def __init__(
        self,
        asked: Offload,
        *,
        device: torch.device,
        on_device: MakeProjection,
        on_host: MakeProjection,
        host: torch.device | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.host = host or torch.device("cpu")
        self.nbytes = 0
        self._device = device
        self._on_device, self._on_host = on_device, on_host
        self._stream_from = asked.stream_from_rows
        self._reason = "it was asked for" if asked.stream_from_rows is not None else ""
        self._clock = clock

    def make(self, weight: Tensor, bias: Tensor | None) -> Projection:
        """A projection over a matrix in the host's memory."""
        if self._device.type == "cuda":
            # Only from pinned memory is a transfer as fast as the bus.
            weight, bias = weight.pin_memory(), None if bias is None else bias.pin_memory()
        if self._stream_from is None:
            self._stream_from, self._reason = self._measured(self._projection(weight, bias, 0), weight)
        self.nbytes += weight.nbytes + (0 if bias is None else bias.nbytes)
        return self._projection(weight, bias, self._stream_from)

    def stats(self) -> dict[str, object]:
        """For the status page."""
        return {
            "bytes": self.nbytes,
            "stream_from_rows": self._stream_from,
            "stream_reason": self._reason,
        }

    def _projection(self, weight: Tensor, bias: Tensor | None, stream_from: int) -> OffloadedProjection:
        return OffloadedProjection(
            weight,
            bias,
            device=self._device,
            on_device=self._on_device,
            on_host=self._on_host,
            stream_from_rows=stream_from,
        )

    def _measured(self, projection: OffloadedProjection, weight: Tensor) -> tuple[int, str]:
        """The fewest of the tried rows for which sending the matrix is faster, and the figures."""
        if self._device.type == "cpu":
            return _TRIED_ROWS[-1] + 1, "the device is the host itself: nothing is sent"
        for rows in _TRIED_ROWS:
            x = torch.zeros(rows, weight.shape[1], dtype=weight.dtype, device=self._device)
            hosted, streamed = self._timed(projection.hosted, x), self._timed(projection.streamed, x)
            if streamed < hosted:
                figures = f"{hosted * 1e3:.2g} ms on the host, {streamed * 1e3:.2g} ms sent, for {rows} rows"
                return rows, figures
        return _TRIED_ROWS[-1] + 1, f"the host is faster up to {_TRIED_ROWS[-1]} rows"

    def _timed(self, product: Callable[[Tensor], Tensor], x: Tensor) -> float:
        """Seconds of the fastest of a few, after one that does not count."""
        best = float("inf")
        for repeat in range(_REPEATS + 1):
            start = self._clock()
            product(x).cpu()
            if repeat:
                best = min(best, self._clock() - start)
        return best


def layers_that_fit(layer_bytes: list[int], other_bytes: int, free_bytes: int) -> int:
    """How many layers go onto the device: as many as leave a quarter of its free memory to KV and activations."""
    left = free_bytes * 3 // 4 - other_bytes
    for number, size in enumerate(layer_bytes):
        left -= size
        if left < 0:
            return number
    return len(layer_bytes)
