"""Rotary positions from GGUF metadata: ``<arch>.rope.*`` and the tensor ``rope_freqs.weight``."""

from __future__ import annotations

import math

from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFFile
from stretto.weights.rope_config import RopeConfig

_KNOWN = {
    "dimension_count",
    "freq_base",
    "freq_base_swa",
    "scale_linear",
    "scaling.type",
    "scaling.factor",
    "scaling.attn_factor",
    "scaling.original_context_length",
    "scaling.finetuned",
    "scaling.yarn_log_multiplier",
    "scaling.yarn_ext_factor",
    "scaling.yarn_attn_factor",
    "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow",
}


def read_rope(
    file: GGUFFile,
    arch: str,
    head_size: int,
    context_tokens: int,
    divisors: tuple[float, ...] | None,
    *,
    longrope: bool = False,
) -> RopeConfig:
    """Build the RopeConfig.

    A factor without ``scaling.type`` is linear, as the format's first readers had it. Llama 3.1's scaling is carried as
    a tensor of divisors instead of its parameters.

    Args:
        divisors: values of ``rope_freqs.weight``, or None.
        longrope: the caller reads the divisors of that kind.

    Raises:
        StartupError: ``model_unsupported`` naming a key or kind that is not known; ``model_invalid``.
    """
    path, prefix = file.file.path, f"{arch}.rope."
    for key in file.keys(prefix):
        if key.removeprefix(prefix) not in _KNOWN:
            raise unsupported(path, f"{key} is not known; it may change the rotary positions")

    def number(key: str, otherwise: float) -> float:
        value = file.number(prefix + key)
        return otherwise if value is None else float(value)

    base = number("freq_base", 10_000.0)
    dims = file.whole(prefix + "dimension_count")
    dims = head_size if dims is None else dims
    factor = number("scaling.factor", 0.0) or number("scale_linear", 0.0) or 1.0
    kind = file.text(prefix + "scaling.type")
    if kind is None:
        kind = "none" if factor == 1.0 else "linear"
    if kind == "longrope" and longrope:
        kind = "none"
    if number("scaling.yarn_log_multiplier", 0.0) != 0.0:
        raise unsupported(path, f"{prefix}scaling.yarn_log_multiplier is not computed here")
    scale = number("scaling.attn_factor", 1.0)
    if kind not in ("none", "linear", "yarn"):
        raise unsupported(path, f"{prefix}scaling.type is {kind!r}; none, linear and yarn are computed")
    if divisors is not None:
        if kind != "none":
            raise unsupported(path, f"both rope_freqs.weight and {prefix}scaling.type {kind!r} are given")
        return RopeConfig(base, dims, "llama3", attention_scale=scale, frequency_divisors=divisors)
    if kind == "none":
        return RopeConfig(base, dims, attention_scale=scale)
    if kind == "linear":
        return RopeConfig(base, dims, "linear", factor, attention_scale=scale)
    # A negative value asks for the kind's own default, which is 1 for YaRN.
    if number("scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise unsupported(path, f"{prefix}scaling.yarn_ext_factor is not computed here")
    if not (math.isfinite(factor) and factor > 0):
        raise invalid(path, f"{prefix}scaling.factor is {factor}")
    stretch = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return RopeConfig(
        base,
        dims,
        "yarn",
        factor,
        original_context_tokens=file.whole(prefix + "scaling.original_context_length") or context_tokens,
        beta_fast=number("scaling.yarn_beta_fast", 32.0),
        beta_slow=number("scaling.yarn_beta_slow", 1.0),
        attention_scale=scale * number("scaling.yarn_attn_factor", 1.0) * stretch,
    )
