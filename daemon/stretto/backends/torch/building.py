"""A decoder from a model's files."""

from __future__ import annotations

import torch

from stretto.backends.base import ProgressReport
from stretto.backends.torch.decoder import Decoder, DecoderWeights
from stretto.backends.torch.families import LAYERS, layer_inputs
from stretto.backends.torch.layout import KVLayout, lay_out
from stretto.backends.torch.linear import ProjectionChoice
from stretto.backends.torch.loading import LayerParts, Loader, ModelParts
from stretto.backends.torch.offload import Offloader
from stretto.backends.torch.rope import Rope
from stretto.weights.config import ModelConfig
from stretto.weights.rope_config import RopeConfig
from stretto.weights.source import ModelSource


class OwnModel:
    """A decoder, and what the runtime wants to know of it."""

    def __init__(
        self, config: ModelConfig, layout: KVLayout, decoder: Decoder, nbytes: int, parameters: int
    ) -> None:
        self.family = config.family
        self.vocab_size = config.vocab_size
        self.context_tokens = config.context_tokens
        self.layout = layout
        self.nbytes, self.parameters = nbytes, parameters
        self.forward = decoder.forward


def load_decoder(
    source: ModelSource,
    *,
    context_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    projection: ProjectionChoice,
    report: ProgressReport,
    gpu_layers: int | None = None,
    offloader: Offloader | None = None,
) -> OwnModel:
    """Decode and place all weights; projections that share their input are laid into one matrix.

    Whatever ``report`` raises passes through, and nothing is kept.

    Args:
        context_tokens: the longest sequence there may be; see ``RopeConfig.for_context``.
        gpu_layers, offloader: layers from that number on are made by the offloader.

    Raises:
        StartupError: ``model_invalid``, for weights that are not finite numbers.
    """
    config = source.config
    layout = lay_out(config)
    loader = Loader(source, device=device, dtype=dtype, projection=projection.make, report=report)
    parts = ModelParts(loader, config)
    ropes = rope_kinds(config)
    embedding = parts.table("model.embed_tokens.weight")
    make = LAYERS[config.family]
    on_device = config.layers if gpu_layers is None else gpu_layers
    layers = tuple(
        make(LayerParts(loader, config, number, layout, ropes, offloader if number >= on_device else None))
        for number in range(config.layers)
    )
    norm = parts.norm("model.norm")
    head = projection.make(embedding, None) if config.tied_embeddings else parts.matrix("lm_head.weight")
    inputs = layer_inputs(parts)
    weights = DecoderWeights(embedding, layers, norm, head, inputs)
    decoder = Decoder(
        weights,
        [Rope(rope.for_context(context_tokens), device=device, dtype=dtype) for rope in ropes],
        scale=config.embedding_scale,
        cap=config.logit_cap,
    )
    return OwnModel(config, layout, decoder, loader.nbytes, loader.total)


def rope_kinds(config: ModelConfig) -> tuple[RopeConfig, ...]:
    """The different rotary positions of a model's layers, in order of first use."""
    ropes = (config.attention(number).rope for number in range(config.layers))
    return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))
