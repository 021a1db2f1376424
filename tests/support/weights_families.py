"""A tiny random model of ``transformers`` for each family, with windows that a few dozen tokens leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.weights_tiny import TinyShape, tiny_hf_tokenizer

SHAPE = TinyShape(layers=3)
WINDOW = 11
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
_GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
_LONG: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": 32,
}  # fmt: skip
_GEMMA4: dict[str, Any] = {
    "head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 6, "hidden_size_per_layer_input": 0,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2, "rope_parameters": None, "global_head_dim": 32,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 16}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": WINDOW}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "smollm3-windows": (
        "SmolLM3", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "mlp_only_layers": [1], "norm_topk_prob": True,
        },
    ),
    "gemma2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": (
        "Gemma3",
        {
            **_GEMMA, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100_000.0},
                "sliding_attention": _ROPE,
            },
        },
    ),
    "gemma4-experts": (
        "Gemma4",
        {
            **_GEMMA4, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4,
            "top_k_experts": 2, "moe_intermediate_size": 32, "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4-shared": (
        "Gemma4",
        {
            **_GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": SHAPE.vocab,
        },
    ),
    "phi3": ("Phi3", {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi4": ("Phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 32}),
}  # fmt: skip
"""By name: the class's prefix in ``transformers``, and what of its configuration differs from the common sizes."""


def tiny_family(path: Path, name: str, *, seed: int = 0, dtype: str = "float32", **changes: Any) -> Path:
    """Save a random model of a family as a directory, and give its path back."""
    import torch
    import transformers

    prefix, own = FAMILIES[name]
    text = "Text" if prefix in ("Gemma3", "Gemma4") else ""
    values: dict[str, Any] = {
        "vocab_size": SHAPE.vocab,
        "hidden_size": SHAPE.hidden,
        "intermediate_size": SHAPE.ffn,
        "num_hidden_layers": SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.kv_heads,
        "max_position_embeddings": SHAPE.context,
        "rms_norm_eps": 1e-5,
        "rope_parameters": dict(_ROPE),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **own,
        **changes,
    }
    config = getattr(transformers, f"{prefix}{text}Config")(**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config)
        randomise(model)
    model = model.to(getattr(torch, dtype))
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tiny_hf_tokenizer(path)
    return path


def randomise(model: Any) -> None:
    """Give every weight of a model a size at which it matters to the logits."""
    import torch

    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if not weight.is_floating_point():
                continue
            if weight.ndim > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
            elif "inv_freq" in name or name.endswith("embed_scale"):
                continue
            elif name.endswith("bias"):
                weight.normal_(0.0, 0.2)
            else:
                # Norms that add 1 to their weights begin at 0.
                weight.add_(torch.randn_like(weight) * 0.2)
