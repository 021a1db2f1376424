"""What a model file says of its architecture, in one form for every format.

The families ``llama``, ``qwen2`` and ``qwen3`` share one shape: RMS norms before attention and feed-forward, rotary
positions on half-split heads, grouped KV heads, a SiLU-gated feed-forward. They differ in biases (qwen2) and in norms
on queries and keys (qwen3). Mistral without a sliding window is ``llama``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        scaling: ``none``, ``linear`` (Chen et al. 2023), ``llama3`` (Llama 3.1) or ``yarn`` (Peng et al. 2023).
        factor: by how much the context is stretched; 1 with ``none``.
        original_context_tokens: the context of the pre-training, for ``llama3`` and ``yarn``.
        low_frequency_factor, high_frequency_factor: ``llama3``'s bounds of the blended band.
        beta_fast, beta_slow: ``yarn``'s bounds, in rotations over the original context.
        truncate: whether ``yarn``'s bounds are rounded to whole dimensions.
        attention_scale: what cosines and sines are multiplied by (``yarn``'s attention factor; else 1).
        frequency_divisors: ``llama3`` as some files carry it: the divisor of each inverse frequency, [dims / 2].
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

    def inverse_frequencies(self) -> Float32Array:
        """float32 [dims / 2]: radians a position, by pair of rotated values, with the scaling applied."""
        # Every step in float32 and in this order, as the reference implementations do: the angle at a far position
        # is this number times the position, so a last-bit difference here would be visible there.
        exponents = np.arange(0, self.dims, 2, dtype=np.float32) / np.float32(self.dims)
        wavelengths: Float32Array = np.power(np.float32(self.base), exponents).astype(np.float32)
        plain: Float32Array = (np.float32(1.0) / wavelengths).astype(np.float32)
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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and kinds of one decoder-only model.

    Attributes:
        family: ``llama``, ``qwen2`` or ``qwen3``.
        vocab_size: rows of the embedding table, the width of the logits.
        hidden_size: values a token between layers.
        layers: decoder layers.
        heads: query heads; kv_heads: key and value heads, a divisor of it.
        head_size: values a head; heads * head_size need not be hidden_size.
        ffn_size: width of the feed-forward.
        context_tokens: the longest context the model was made for.
        norm_eps: epsilon of the RMS norms.
        rope: rotary positions.
        tied_embeddings: the output projection is the embedding table.
        attention_bias: q, k and v projections have biases (the output projection never has).
        qk_norm: RMS norms on each head of queries and keys.
        activation: of the feed-forward's gate; always ``silu``.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    context_tokens: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model consists of, by canonical name, with its shape in row-major order."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        for layer in range(self.layers):
            block = f"model.layers.{layer}."
            attention = block + "self_attn."
            shapes[block + "input_layernorm.weight"] = (self.hidden_size,)
            for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                shapes[f"{attention}{name}.weight"] = (rows, self.hidden_size)
                if self.attention_bias:
                    shapes[f"{attention}{name}.bias"] = (rows,)
            if self.qk_norm:
                shapes[attention + "q_norm.weight"] = (self.head_size,)
                shapes[attention + "k_norm.weight"] = (self.head_size,)
            shapes[attention + "o_proj.weight"] = (self.hidden_size, queries)
            shapes[block + "post_attention_layernorm.weight"] = (self.hidden_size,)
            shapes[block + "mlp.gate_proj.weight"] = (self.ffn_size, self.hidden_size)
            shapes[block + "mlp.up_proj.weight"] = (self.ffn_size, self.hidden_size)
            shapes[block + "mlp.down_proj.weight"] = (self.hidden_size, self.ffn_size)
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes
