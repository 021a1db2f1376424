"""The layers of each family of ``stretto.weights.families``. One file a shape of layer."""

from __future__ import annotations

from collections.abc import Callable

from stretto.backends.torch.decoder import Layer, LayerInputs
from stretto.backends.torch.families.gemma2 import Gemma2Layer
from stretto.backends.torch.families.gemma4 import Gemma4Inputs, Gemma4Layer
from stretto.backends.torch.families.llama import LlamaLayer
from stretto.backends.torch.families.qwen3_moe import Qwen3MoeLayer
from stretto.backends.torch.loading import LayerParts, ModelParts

LAYERS: dict[str, Callable[[LayerParts], Layer]] = {
    "llama": LlamaLayer,
    "smollm3": LlamaLayer,
    "qwen2": LlamaLayer,
    "qwen3": LlamaLayer,
    "qwen3_moe": Qwen3MoeLayer,
    "gemma2": Gemma2Layer,
    "gemma3": Gemma2Layer,
    "gemma4": Gemma4Layer,
    "phi3": LlamaLayer,
}
"""By ``ModelConfig.family``."""


def layer_inputs(parts: ModelParts) -> LayerInputs | None:
    """The layers' own embeddings, where a model has those."""
    return Gemma4Inputs(parts) if parts.config.layer_input_size else None


__all__ = ["LAYERS", "layer_inputs"]
