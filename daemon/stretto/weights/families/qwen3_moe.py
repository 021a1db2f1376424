"""Qwen3 with a mixture of experts in place of the feed-forward."""

from __future__ import annotations

from dataclasses import replace

from stretto.weights.config import Experts, ModelConfig
from stretto.weights.families.family import LAYER_TENSORS, Family
from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader, short


def _from_hf(read: HFReader, config: ModelConfig) -> ModelConfig:
    if read.flag("use_sliding_window", False):
        raise unsupported(read.path, "use_sliding_window is True, which is not computed here")
    listed = read.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise invalid(read.path, f"mlp_only_layers is {short(listed)}, not a list of layers")
    step = read.whole("decoder_sparse_step", 1)
    if step < 1:
        raise invalid(read.path, f"decoder_sparse_step is {step}")
    dense = {layer for layer in range(config.layers) if layer in listed or (layer + 1) % step}
    experts = Experts(
        count=read.whole("num_local_experts", read.whole("num_experts", 128)),
        per_token=read.whole("num_experts_per_tok", 8),
        ffn_size=read.whole("moe_intermediate_size", 768),
        normalised=read.flag("norm_topk_prob", False),
        dense_layers=frozenset(dense),
    )
    return replace(config, qk_norm=True, experts=experts)


def _from_gguf(read: GGUFReader, config: ModelConfig) -> ModelConfig:
    experts = Experts(
        count=read.whole("expert_count"),
        per_token=read.whole("expert_used_count"),
        ffn_size=read.whole("expert_feed_forward_length"),
        normalised=True,
    )
    return replace(config, qk_norm=True, experts=experts)


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    from_hf=_from_hf,
    hf_computed=frozenset({"use_sliding_window"}),
    gguf=("qwen3moe",),
    from_gguf=_from_gguf,
    gguf_computed=frozenset({"expert_count", "expert_used_count"}),
    layer_tensors={
        **LAYER_TENSORS,
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.*.gate_proj",
        "ffn_up_exps": "mlp.experts.*.up_proj",
        "ffn_down_exps": "mlp.experts.*.down_proj",
    },
)
