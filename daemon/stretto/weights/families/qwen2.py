"""Qwen2 and Qwen2.5: biases on queries, keys and values; the upper layers may have a sliding window."""

from __future__ import annotations

from dataclasses import replace

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.families.layers import with_windows
from stretto.weights.faults import unsupported
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader


def with_upper_windows(read: HFReader, config: ModelConfig) -> ModelConfig:
    """The window of the layers from ``max_window_layers`` on, if it is in use."""
    if not read.flag("use_sliding_window", False):
        if any(read.sliding(config.layers, ())):
            raise unsupported(
                read.path, "layer_types has sliding_attention, and use_sliding_window is not true"
            )
        return config
    first = read.whole("max_window_layers", 28)
    upper = [layer >= first for layer in range(config.layers)]
    return with_windows(config, read.window(), read.sliding(config.layers, upper))


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    return replace(with_upper_windows(read, config), attention_bias=True)


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    return replace(config, attention_bias=read.has("model.layers.0.self_attn.q_proj.bias"))


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    from_hf=_from_hf,
    hf_computed=frozenset({"use_sliding_window"}),
    gguf=("qwen2",),
    from_gguf=_from_gguf,
)
