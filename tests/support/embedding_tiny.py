"""A tiny valid embedding model for tests, made without torch: two layers, 32 wide, words of a small vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

from stretto.embedding.config import EncoderConfig

_TEXT = (
    "[PAD] [UNK] [CLS] [SEP] the a an of to in is what who how do i you my it and or not no open close account bank "
    "capital france paris germany berlin red green blue one two three ##s ##ing ##ed , . ? ! 1 2 3 4 5"
)
WORDS = _TEXT.split()
CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}


def tiny_embedder(
    directory: Path, *, seed: int = 0, max_tokens: int | None = 16, pooling: str = "mean", **changes: Any
) -> Path:
    """Write the model into ``directory``, as sentence-transformers lays it out; ``changes`` go into config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    write_json(directory / "config.json", config)
    if max_tokens is not None:
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_tokens})
    modes = {
        "mean": "pooling_mode_mean_tokens",
        "cls": "pooling_mode_cls_token",
        "max": "pooling_mode_max_tokens",
    }
    (directory / "1_Pooling").mkdir(exist_ok=True)
    write_json(directory / "1_Pooling" / "config.json", {key: name == pooling for name, key in modes.items()})
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": index, "type": f"sentence_transformers.models.{kind}"} for index, kind in enumerate(kinds)
    ]
    write_json(directory / "modules.json", modules)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    save_file(tiny_weights(seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """BERT's, with the truncation and padding that such files are often saved with."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    return tokenizer


def tiny_weights(seed: int) -> dict[str, np.ndarray]:
    """Random weights of every tensor of the encoder, and what real files carry along besides."""
    config = tiny_config()
    rng = np.random.default_rng(seed)
    tensors = {
        name: (rng.standard_normal(shape) * 0.3 + (1.0 if name.endswith("LayerNorm.weight") else 0.0)).astype(
            np.float32
        )
        for name, shape in config.tensor_shapes().items()
    }
    tensors["pooler.dense.weight"] = np.zeros((32, 32), dtype=np.float32)
    tensors["pooler.dense.bias"] = np.zeros(32, dtype=np.float32)
    tensors["embeddings.position_ids"] = np.arange(24, dtype=np.int64)[None]
    return tensors


def tiny_config() -> EncoderConfig:
    return EncoderConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        layers=2,
        heads=4,
        ffn_size=64,
        positions=24,
        token_types=2,
        norm_eps=1e-12,
        max_tokens=16,
        pooling="mean",
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
