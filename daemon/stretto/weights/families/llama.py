"""Llama and what is built like it: SmolLM2, Yi, and Mistral with its sliding window."""

from __future__ import annotations

from stretto.weights.config import ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.families.layers import with_windows
from stretto.weights.faults import unsupported
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    if read.values.get("sliding_window") is None:
        if any(read.sliding(config.layers, ())):
            raise unsupported(read.path, "layer_types has sliding_attention, and sliding_window is missing")
        return config
    if read.values["architectures"][0] != "MistralForCausalLM":
        window = read.whole("sliding_window")
        if window < config.context_tokens:
            raise unsupported(
                read.path, f"sliding_window is {window}: Llama's sliding windows are not computed"
            )
        return config
    return with_windows(config, read.window(), read.sliding(config.layers, [True] * config.layers))


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    window = read.whole("attention.sliding_window", 0)
    return with_windows(config, window, [window > 0] * config.layers)


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    from_hf=_from_hf,
    gguf=("llama",),
    from_gguf=_from_gguf,
    interleaved=True,
)
