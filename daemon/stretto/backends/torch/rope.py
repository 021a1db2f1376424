"""Rotary position embedding on half-split heads (Su et al. 2021, RoFormer)."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.weights.rope_config import RopeConfig

Turn = tuple[Tensor, Tensor]
"""Cosines and signed sines of a step's tokens, see ``Rope.tables``."""


class Rope:
    """Rotates the first ``dims`` values of heads; value i pairs with value i + dims / 2."""

    def __init__(self, config: RopeConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.dims = config.dims
        self._frequencies = torch.from_numpy(config.inverse_frequencies()).to(device)
        self._scale = config.attention_scale
        self._dtype = dtype

    def tables(self, positions: Tensor) -> Turn:
        """Cosines and signed sines of a step's tokens.

        Angles are computed in float32: in half precision a far position would not even be a whole number.

        Args:
            positions: int64 [T].

        Returns:
            Two tensors [T, 1, dims] in the computation's dtype; the first half of the sines is negated.
        """
        angles = positions[:, None].float() * self._frequencies
        cosines, sines = angles.cos() * self._scale, angles.sin() * self._scale
        return (
            torch.cat((cosines, cosines), -1)[:, None].to(self._dtype),
            torch.cat((-sines, sines), -1)[:, None].to(self._dtype),
        )


def rotate(heads: Tensor, turn: Turn) -> None:
    """Rotate in place.

    Args:
        heads: [T, heads, head_size], a view of the projections.
        turn: as ``Rope.tables`` gives it.
    """
    cosines, sines = turn
    turned = heads[..., : cosines.shape[-1]]
    swapped = turned.roll(cosines.shape[-1] // 2, -1)
    turned.mul_(cosines).addcmul_(swapped, sines)
