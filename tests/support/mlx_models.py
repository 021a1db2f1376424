"""Tiny random models of mlx-lm's zoo as directories, plain or packed, and what mlx-lm itself computes of them over its own caches.

Made with MLX alone, so that they exist where PyTorch does not. The vocabulary and tokenizer are those of ``weights_tiny``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.utils
import numpy as np

from stretto.backends.base import Float32Array
from stretto.backends.mlx import MLXBackend
from stretto.backends.mlx.zoo import find_architecture, own_caches
from stretto.weights import Checkpoint
from support.backend_driver import silent
from support.weights_tiny import tiny_hf_tokenizer, tiny_vocabulary

nn: Any = mlx.nn
VOCAB = len(tiny_vocabulary().tokens)
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": [2, 0],
    "bos_token_id": 0,
}
_GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6}
_SLIDING: dict[str, Any] = {"sliding_window": 8, "sliding_window_pattern": 3}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": None, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"head_dim": None},
    "qwen3": {"rope_theta": 10000.0},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": 32, "norm_topk_prob": True, "rope_theta": 10000.0,
    },
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**_GEMMA, **_SLIDING},
    "gemma3": {"text_config": {**_COMMON, **_GEMMA, **_SLIDING, "model_type": "gemma3_text"}},
    "phi3": {"rope_theta": 10000.0},
    "deepseek_v3": _LATENT,
}  # fmt: skip
"""By model type, what differs from the common sizes."""


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """Contents of config.json; None takes a key out."""
    values = {"model_type": family, **_COMMON, **CONFIGS.get(family, {}), **changes}
    return {
        key: value for key, value in values.items() if value is not None or key in CONFIGS.get(family, {})
    }


def tiny_mlx(
    path: Path,
    family: str = "llama",
    *,
    bits: int | None = None,
    other_bits: Mapping[str, int] | None = None,
    dtype: mx.Dtype = mx.float32,
    seed: int = 0,
    made_by: str = "mlx",
    **changes: Any,
) -> Path:
    """Write a model of random weights as mlx-lm saves its conversions, and give its path back.

    Args:
        family: a key of ``CONFIGS``, or any model type whose configuration ``changes`` completes.
        bits: pack the matrices with so many, in groups of 32.
        other_bits: by layer path, those that are packed with other bits.
        changes: keys of config.json.
    """
    config = config_of(family, **changes)
    mx.random.seed(seed)
    model = find_architecture(config).build(config)
    model.update(mlx.utils.tree_map_with_path(_random, model.parameters()))
    model.set_dtype(dtype)
    if bits is not None:
        packing: dict[str, Any] = {"group_size": 32, "bits": bits}
        listed = {name: {"group_size": 32, "bits": count} for name, count in (other_bits or {}).items()}

        def choose(name: str, module: Any) -> bool | dict[str, int]:
            return (
                hasattr(module, "to_quantized")
                and module.weight.shape[-1] % 32 == 0
                and listed.get(name, True)
            )

        nn.quantize(model, group_size=32, bits=bits, class_predicate=choose)
        config["quantization"] = config["quantization_config"] = {**packing, **listed}
    path.mkdir(parents=True, exist_ok=True)
    weights: Any = dict(mlx.utils.tree_flatten(model.parameters()))
    if "lm_head.weight" in weights and getattr(model, "tie_word_embeddings", False):
        del weights["lm_head.weight"]
    mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": made_by})
    (path / "config.json").write_text(json.dumps(config))
    tiny_hf_tokenizer(path)
    return path


def _random(name: str, value: mx.array) -> mx.array:
    """Spread wide enough that the best token is rarely a near tie."""
    if value.ndim < 2:
        mean = 0.0 if name.endswith("bias") else 1.0
        return mx.random.normal(value.shape) * 0.2 + mean
    return mx.random.normal(value.shape) * value.shape[-1] ** -0.5 * 1.5


def loaded(path: Path, **options: Any) -> MLXBackend:
    """A backend with a model in it, on the CPU unless told so."""
    checkpoint = Checkpoint(path)
    backend = MLXBackend(checkpoint, **{"device": "cpu", **options})
    try:
        backend.load(silent)
    finally:
        checkpoint.close()
    return backend


class Reference:
    """mlx-lm's model over mlx-lm's caches, one sequence at a time, from the same loaded weights."""

    def __init__(self, backend: MLXBackend) -> None:
        runtime = backend._runtime
        assert runtime is not None
        self.model: Callable[..., mx.array] = runtime._loaded.model

    def logits(self, tokens: Sequence[int], cuts: Sequence[int] = ()) -> Float32Array:
        """float32 [tokens, vocab]; the sequence is read in pieces that end at ``cuts``."""
        caches = own_caches(self.model)
        parts = []
        for first, last in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
            out = self.model(mx.array([list(tokens[first:last])]), cache=caches)[0].astype(mx.float32)
            mx.eval(out)
            parts.append(np.array(out))
        return np.concatenate(parts)

    def greedy(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """The best next token, again and again."""
        caches = own_caches(self.model)
        if len(prompt) > 1:
            self.model(mx.array([list(prompt[:-1])]), cache=caches)
        answer, last = [], int(prompt[-1])
        for _ in range(new_tokens):
            last = int(self.model(mx.array([[last]]), cache=caches)[0, -1].argmax().item())
            answer.append(last)
        return answer
