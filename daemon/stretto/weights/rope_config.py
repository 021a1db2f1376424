"""Rotary position embedding as model files describe it, and the frequencies that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: which frequencies, and how they are stretched for long contexts.

    ``inverse_frequencies`` and ``attention_scale`` are all that a backend needs; the fields say where they come from.

    Attributes:
        base: theta, the base of the geometric series of wavelengths.
        dims: how many values of a head are rotated (an even number).
        scaling: ``none``, ``linear`` (Chen et al. 2023), ``llama3`` (Llama 3.1), ``yarn`` (Peng et al. 2023), ``longrope``
            (Ding et al. 2024) or ``proportional`` (a part of the head turns, in pairs half a head apart).
        factor: by how much the context is stretched; 1 with ``none``.
        original_context_tokens: the context of the pre-training, for ``llama3``, ``yarn`` and ``longrope``.
        low_frequency_factor, high_frequency_factor: ``llama3``'s bounds of the blended band.
        beta_fast, beta_slow: ``yarn``'s bounds, in rotations over the original context.
        truncate: whether ``yarn``'s bounds are rounded to whole dimensions.
        attention_scale: what cosines and sines are multiplied by (``yarn``'s attention factor; else 1).
        frequency_divisors: ``llama3`` as some files carry it, and ``longrope`` up to the original context: the divisor of each
            inverse frequency, [dims / 2].
        long_divisors: ``longrope``'s beyond the original context.
        turning: ``proportional``: how many of the pairs turn at all.
    """

    base: float
    dims: int
    scaling: str = "none"
    factor: float = 1.0
    original_context_tokens: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_scale: float = 1.0
    frequency_divisors: tuple[float, ...] | None = None
    long_divisors: tuple[float, ...] | None = None
    turning: int | None = None

    def for_context(self, context_tokens: int) -> RopeConfig:
        """What to compute with when sequences may become so long.

        ``longrope`` has one set of divisors for contexts up to the original one and another for longer ones. Keys that are
        cached cannot be turned again, so one set is chosen for life, by the longest sequence there may be.
        """
        if self.long_divisors is None:
            return self
        long = context_tokens > self.original_context_tokens
        divisors = self.long_divisors if long else self.frequency_divisors
        return replace(self, frequency_divisors=divisors, long_divisors=None)

    def inverse_frequencies(self) -> Float32Array:
        """float32 [dims / 2]: radians a position, by pair of rotated values, with the scaling applied."""
        # Every step in float32 and in this order, as the reference implementations do: the angle at a far position
        # is this number times the position, so a last-bit difference here would be visible there.
        exponents = np.arange(0, self.dims, 2, dtype=np.float32) / np.float32(self.dims)
        wavelengths: Float32Array = np.power(np.float32(self.base), exponents).astype(np.float32)
        plain: Float32Array = (np.float32(1.0) / wavelengths).astype(np.float32)
        if self.scaling == "longrope":
            divisors = np.asarray(self.frequency_divisors, dtype=np.float32)
            return (np.float32(1.0) / (divisors * wavelengths)).astype(np.float32)
        if self.scaling == "proportional":
            plain[self.turning :] = 0
            return plain
        if self.frequency_divisors is not None:
            return (plain / np.asarray(self.frequency_divisors, dtype=np.float32)).astype(np.float32)
        if self.scaling == "linear":
            return plain / np.float32(self.factor)
        if self.scaling == "llama3":
            return self._llama3(plain)
        if self.scaling == "yarn":
            return self._yarn(wavelengths, plain)
        return plain

    def _llama3(self, plain: Float32Array) -> Float32Array:
        """Long waves divided by the factor, short ones kept, a linear blend in between."""
        turns = np.float32(self.original_context_tokens) / (np.float32(2 * math.pi) / plain)
        low, high = np.float32(self.low_frequency_factor), np.float32(self.high_frequency_factor)
        stretched = plain / np.float32(self.factor)
        smooth = (turns - low) / (high - low)
        blended = (1 - smooth) * stretched + smooth * plain
        return np.where(turns < low, stretched, np.where(turns > high, plain, blended)).astype(np.float32)

    def _yarn(self, wavelengths: Float32Array, plain: Float32Array) -> Float32Array:
        """NTK-by-parts: dimensions that turn often are kept, the others interpolated, a ramp in between."""

        def dimension(rotations: float) -> float:
            turns = self.original_context_tokens / (rotations * 2 * math.pi)
            return self.dims * math.log(turns) / (2 * math.log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dims - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(self.dims // 2, dtype=np.float32) - low) / (high - low), 0, 1)
        kept = (1 - ramp).astype(np.float32)
        stretched = np.float32(1.0) / (np.float32(self.factor) * wavelengths)
        blended: Float32Array = (stretched * (1 - kept) + plain * kept).astype(np.float32)
        return blended
