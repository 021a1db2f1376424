"""The families that are computed here, one file each. ``docs/adding-a-model.md`` shows how another is added."""

from __future__ import annotations

from stretto.weights.families import gemma2, gemma3, gemma4, llama, phi3, qwen2, qwen3, qwen3_moe, smollm3
from stretto.weights.families.family import LAYER_TENSORS, Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    smollm3.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma4.FAMILY,
    phi3.FAMILY,
)


def computable() -> tuple[str, ...]:
    """Values of config.json's ``architectures`` that can be computed."""
    return tuple(name for family in FAMILIES for name in family.architectures)


def gguf_architectures() -> tuple[str, ...]:
    """Values of ``general.architecture`` that can be computed."""
    return tuple(name for family in FAMILIES for name in family.gguf)


__all__ = ["FAMILIES", "LAYER_TENSORS", "Family", "computable", "gguf_architectures"]
