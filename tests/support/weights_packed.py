"""Directories of models that nobody knows, packed for MLX or not; made without MLX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from support.weights_tiny import tiny_hf_tokenizer, tiny_vocabulary

VOCAB = len(tiny_vocabulary().tokens)
QUANTIZATION = {"group_size": 64, "bits": 4}


def packed_directory(path: Path, *, made_by: str = "pt", scalar: bool = True, **config: Any) -> Path:
    """Two tensors of a model nobody knows: a packed table, and its scales."""
    path.mkdir()
    tiny_hf_tokenizer(path)
    values = {"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch", "eos_token_id": 2, **config}
    (path / "config.json").write_text(json.dumps(values))
    tensors = {
        "model.embed_tokens.weight": np.zeros((VOCAB, 8), dtype=np.uint32),
        "model.embed_tokens.scales": np.ones((VOCAB, 1), dtype=np.float16),
    }
    if scalar:
        tensors["model.layers.0.global_scale"] = np.ones((), dtype=np.float32)
    save_file(tensors, path / "model.safetensors", metadata={"format": made_by})
    return path
