"""Tiny random models of families that have no module here, as ``transformers`` saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.weights_families import SHAPE, WINDOW, randomise
from support.weights_tiny import tiny_hf_tokenizer

FOREIGN: dict[str, dict[str, Any]] = {
    "GPTNeoX": {},
    "Olmo2": {},
    "StableLm": {},
    "Granite": {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "Olmo3": {
        "sliding_window": WINDOW, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "OPT": {"ffn_dim": SHAPE.ffn, "word_embed_proj_dim": SHAPE.hidden},
    "Bloom": {"n_layer": SHAPE.layers, "n_head": SHAPE.heads},
    "Mamba": {},
}  # fmt: skip
"""By the class's prefix in ``transformers``, what differs from the common sizes."""


def tiny_foreign(path: Path, name: str, *, seed: int = 0, context: int = SHAPE.context) -> Path:
    """Save a random model as a directory, and give its path back."""
    import torch
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=SHAPE.vocab,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.ffn,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        **FOREIGN[name],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        randomise(model)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tiny_hf_tokenizer(path)
    return path
