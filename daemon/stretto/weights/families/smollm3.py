"""SmolLM3: Llama with layers that have no positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.weights.config import LayerAttention, ModelConfig
from stretto.weights.families.family import Family
from stretto.weights.faults import invalid
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader, short

_INTERVAL = 4


def _with_positions(config: ModelConfig, turned: Sequence[bool]) -> ModelConfig:
    return replace(
        config,
        layer_attention=tuple(
            LayerAttention(config.kv_heads, config.head_size, None, config.rope if turns else None)
            for turns in turned
        ),
    )


def _every(config: ModelConfig, interval: int) -> list[bool]:
    return [(layer + 1) % interval != 0 for layer in range(config.layers)]


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    listed = read.values.get("no_rope_layers")
    if listed is None:
        interval = read.whole("no_rope_layer_interval", _INTERVAL)
        if interval < 1:
            raise invalid(read.path, f"no_rope_layer_interval is {interval}")
        turned = _every(config, interval)
    elif isinstance(listed, list) and all(item in (0, 1) for item in listed):
        if len(listed) < config.layers:
            raise invalid(read.path, f"no_rope_layers has {len(listed)} entries for {config.layers} layers")
        turned = [bool(item) for item in listed[: config.layers]]
    else:
        raise invalid(read.path, f"no_rope_layers is {short(listed)}, not a list of 0 and 1")
    if not read.flag("use_sliding_window", False) or read.values.get("sliding_window") is None:
        return _with_positions(config, turned)
    window = read.window()
    sliding = read.sliding(config.layers, [not turns for turns in turned])
    config = _with_positions(config, turned)
    return replace(
        config,
        layer_attention=tuple(
            replace(layer, window_tokens=window if slides and window < config.context_tokens else None)
            for layer, slides in zip(config.layer_attention, sliding, strict=True)
        ),
    )


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    return _with_positions(config, _every(config, _INTERVAL))


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    from_hf=_from_hf,
    hf_computed=frozenset({"use_sliding_window"}),
    tied=True,
    rope_base=2_000_000.0,
    gguf=("smollm3",),
    from_gguf=_from_gguf,
    interleaved=True,
)
