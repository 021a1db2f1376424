"""Tiny models of ``transformers`` as GGUF files, as converters write them: tensor names and keys from the ``gguf`` package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from support.weights_tiny import CHATML_TEMPLATE, SPECIAL_TOKENS, tiny_vocabulary

ARCHITECTURES = {
    "mistral": "llama",
    "smollm3": "smollm3",
    "qwen3": "qwen3",
    "qwen3-moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "phi4": "phi3",
}
"""By name in ``weights_families``, what GGUF calls the architecture."""


def convert(directory: Path, name: str, path: Path) -> Path:
    """Write the model of a directory as a GGUF file of float32 tensors, and give its path back."""
    import gguf

    arch = ARCHITECTURES[name]
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), arch)
    _write_sizes(writer, arch, config)
    _write_kind(writer, arch, config)
    _write_tokenizer(writer)
    layers, experts = (
        config["num_hidden_layers"],
        config.get("num_local_experts") or config.get("num_experts"),
    )
    names = gguf.get_tensor_name_map(
        next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == arch), layers
    )
    tensors = load_file(directory / "model.safetensors")
    for layer in range(layers if experts else 0):
        for part in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.layers.{layer}.mlp.experts"
            of_experts = [tensors.pop(f"{prefix}.{number}.{part}.weight", None) for number in range(experts)]
            if of_experts[0] is not None:
                tensors[f"{prefix}.{part}.weight"] = np.stack(of_experts)
    for full, values in tensors.items():
        found = names.get_name(full, try_suffixes=(".weight", ".bias"))
        assert found is not None, full
        writer.add_tensor(found, _converted(full, values, arch, config))
    if (long := config["rope_parameters"].get("long_factor")) is not None:
        writer.add_tensor("rope_factors_long.weight", np.array(long, dtype=np.float32))
        short = config["rope_parameters"]["short_factor"]
        writer.add_tensor("rope_factors_short.weight", np.array(short, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _head_size(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _write_sizes(writer: Any, arch: str, config: dict[str, Any]) -> None:
    writer.add_name(f"Tiny {arch}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_kind(writer: Any, arch: str, config: dict[str, Any]) -> None:
    """What is the family's own."""
    import gguf

    rope = config["rope_parameters"]
    main = rope.get("full_attention", rope)
    writer.add_rope_freq_base(main["rope_theta"])
    writer.add_rope_dimension_count(int(_head_size(config) * main.get("partial_rotary_factor", 1.0)))
    if main["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(main["factor"])
    if main["rope_type"] == "longrope":
        original = main["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(original))))
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if arch == "qwen3moe":
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _write_tokenizer(writer: Any) -> None:
    vocabulary = tiny_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(vocabulary.tokens))
    plain = len(vocabulary.tokens) - len(SPECIAL_TOKENS)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * plain)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML_TEMPLATE)


def _converted(
    name: str, values: npt.NDArray[np.float32], arch: str, config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    if arch in ("llama", "smollm3") and name.endswith(("q_proj.weight", "k_proj.weight")):
        rows, columns = values.shape
        heads = rows // _head_size(config)
        paired = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
        return np.ascontiguousarray(paired.reshape(rows, columns))
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values
