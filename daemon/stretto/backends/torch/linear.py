"""Matrix products behind one small seam, so that another way to hold a weight is another class here.

A projection is anything that turns [T, in] into [T, out]. Two hold dense weights; which one is chosen once, at load.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.host import processor

_LONGEST_SUM = 1024


class Projection(Protocol):
    """[T, in] to [T, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        ...


class DenseProjection:
    """PyTorch's own choice of library."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out]."""
        return F.linear(x, self._weight, self._bias)


class OneDNNProjection:
    """oneDNN in float32, through the operator that PyTorch's compiler emits for it.

    Its kernels for several rows add all of a row's products into one running sum. Where a model has a few very large
    activations (the first tokens, before the down projection) that loses digits, so long rows are summed in parts: on
    SmolLM2 that brings the distance to a float64 computation from 1.5 times PyTorch's own to about equal.
    """

    __slots__ = ("_bias", "_product", "_weights")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        # The kernels want whole rows: a part that is not contiguous would be copied at every call.
        parts = -(-weight.shape[1] // _LONGEST_SUM)
        self._weights = [part.contiguous() for part in weight.chunk(parts, 1)]
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out]."""
        first, *others = self._weights
        start = first.shape[1]
        out: Tensor = self._product(x if not others else x[:, :start], first, self._bias, "none", [], "")
        for weight in others:
            end = start + weight.shape[1]
            out += self._product(x[:, start:end], weight, None, "none", [], "")
            start = end
        return out


@dataclass(frozen=True, slots=True)
class ProjectionChoice:
    """Which class holds the weights, and why."""

    make: Callable[[Tensor, Tensor | None], Projection]
    name: str
    reason: str


def choose_projection(
    device: torch.device, dtype: torch.dtype, vendor: str | None = None
) -> ProjectionChoice:
    """Pick the library for dense products.

    In float32 PyTorch calls MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN uses what the
    processor has. Measured on an AMD EPYC with AVX-512, one thread, [T, 576] x [576, 3072]: 1.3 times as fast for
    T = 1, 1.7 for T = 8 and 16, 2.2 for T = 512. Half precision goes to oneDNN anyway.

    Args:
        vendor: the processor's vendor as ``/proc/cpuinfo`` names it; None reads it.
    """
    if device.type != "cpu" or dtype != torch.float32 or platform.machine() not in ("x86_64", "AMD64"):
        return ProjectionChoice(DenseProjection, "torch", "the library that PyTorch chooses")
    vendor = processor().vendor if vendor is None else vendor
    if vendor in ("", "GenuineIntel"):
        return ProjectionChoice(DenseProjection, "torch", "MKL, on a processor that it is tuned for")
    try:
        OneDNNProjection(torch.zeros(2, 2))(torch.zeros(1, 2))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return ProjectionChoice(
            DenseProjection, "torch", "this PyTorch build does not offer oneDNN for float32"
        )
    return ProjectionChoice(OneDNNProjection, "onednn", f"MKL is slow on {vendor} processors")
