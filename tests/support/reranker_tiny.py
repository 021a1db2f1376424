"""A tiny valid reranking model for tests, made without torch: the tiny encoder of the embedding tests, with a head of one label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from support.embedding_tiny import CONFIG, tiny_tokenizer, tiny_weights, write_json

HIDDEN = 32


def tiny_reranker(directory: Path, *, seed: int = 0, labels: int = 1, **changes: Any) -> Path:
    """Write the model into ``directory``, as sentence-transformers saves a cross-encoder; ``changes`` go into config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(number): f"LABEL_{number}" for number in range(labels)},
        "label2id": {f"LABEL_{number}": number for number in range(labels)},
    }
    write_json(directory / "config.json", config | changes)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    rng = np.random.default_rng(seed + 1)
    tensors = {f"bert.{name}": value for name, value in tiny_weights(seed).items()}
    for name, shape in (("bert.pooler.dense", (HIDDEN, HIDDEN)), ("classifier", (labels, HIDDEN))):
        tensors[f"{name}.weight"] = (rng.standard_normal(shape) * 0.4).astype(np.float32)
        tensors[f"{name}.bias"] = (rng.standard_normal(shape[:1]) * 0.4).astype(np.float32)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
