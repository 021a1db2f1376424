"""Root mean square norms (Zhang and Sennrich 2019), computed in float32."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class Norm:
    """Over the last dimension. Weights of a wider type than the input are multiplied in theirs, before rounding."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, weight: Tensor | None, eps: float) -> None:
        """``weight``: [size], or None for a norm alone."""
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size], in the input's dtype."""
        weight = self._weight
        if weight is None or weight.dtype == x.dtype:
            return F.rms_norm(x, (x.shape[-1],), weight, self._eps)
        return F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, self._eps).to(x.dtype)


class HeadNorm:
    """Norms of queries and keys, head by head, in place."""

    __slots__ = ("_eps", "_weights")

    def __init__(self, weights: Tensor, eps: float) -> None:
        """``weights``: [heads, head_size]."""
        self._weights, self._eps = weights, eps

    def __call__(self, heads: Tensor) -> None:
        """Norm [T, heads, head_size]."""
        wide = heads.to(self._weights.dtype)
        heads.copy_(F.rms_norm(wide, (heads.shape[-1],), None, self._eps).mul_(self._weights))
