"""What kind of encoder a directory holds: config.json, and the files that sentence-transformers puts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stretto.weights.faults import invalid, unsupported
from stretto.weights.jsonfile import parse_object, read_bytes, read_object

Pooling = Literal["mean", "cls"]

ENCODER = "BertModel"
CLASSIFIER = "BertForSequenceClassification"
_PURPOSES = {ENCODER: ("embedding", "such as minilm"), CLASSIFIER: ("reranking", "with one label")}
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "quantization_config": (None,),
}
"""Keys that change the arithmetic, and the values under which nothing is left out here."""
_RANGES: dict[str, tuple[int, int]] = {
    "vocab_size": (1, 1 << 22),
    "hidden_size": (1, 1 << 14),
    "num_hidden_layers": (1, 1 << 8),
    "num_attention_heads": (1, 1 << 10),
    "intermediate_size": (1, 1 << 16),
    "max_position_embeddings": (3, 1 << 16),
    "type_vocab_size": (1, 1 << 10),
}
_POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A BERT encoder (Devlin et al. 2018) and how one vector is made of its token vectors.

    Attributes:
        max_tokens: longest text, its two control tokens included: what the directory says it was made for, else all positions.
        pooling: ``mean`` of all tokens, or the vector of the first (``cls``).
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    ffn_size: int
    positions: int
    token_types: int
    norm_eps: float
    max_tokens: int
    pooling: Pooling

    @property
    def head_size(self) -> int:
        """Values a head."""
        return self.hidden_size // self.heads

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the encoder under its Hugging Face name, with its shape."""
        hidden, ffn = self.hidden_size, self.ffn_size
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (self.vocab_size, hidden),
            "embeddings.position_embeddings.weight": (self.positions, hidden),
            "embeddings.token_type_embeddings.weight": (self.token_types, hidden),
        }
        dense: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (hidden,)}
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            for name in ("query", "key", "value"):
                dense[f"{at}.attention.self.{name}"] = (hidden, hidden)
            dense[f"{at}.attention.output.dense"] = (hidden, hidden)
            dense[f"{at}.attention.output.LayerNorm"] = (hidden,)
            dense[f"{at}.intermediate.dense"] = (ffn, hidden)
            dense[f"{at}.output.dense"] = (hidden, ffn)
            dense[f"{at}.output.LayerNorm"] = (hidden,)
        for name, shape in dense.items():
            shapes[f"{name}.weight"] = shape
            shapes[f"{name}.bias"] = shape[:1]
        return shapes


def read_encoder_config(directory: Path, architecture: str = ENCODER) -> EncoderConfig:
    """Read and check the configuration.

    Args:
        directory: of the model.
        architecture: what it has to be: ``ENCODER``, or ``CLASSIFIER`` for the same with a head that gives one number.

    Raises:
        StartupError: ``model_unsupported``: it is no BERT encoder, or one with parts that are not computed here;
            ``model_invalid``: it contradicts itself. Both name the file and the key.
    """
    path = directory / "config.json"
    values = read_object(path)
    if values is None:
        raise invalid(directory, "the directory has no config.json")
    names = values.get("architectures")
    if names != [architecture]:
        purpose, example = _PURPOSES[architecture]
        raise unsupported(
            path,
            f"architectures is {names!r}, which is no {purpose} model that can be computed",
            remedy=f"Computable are encoders of the kind {architecture}, {example}.",
        )
    if architecture == CLASSIFIER and len(values.get("id2label") or (0, 1)) != 1:
        raise unsupported(
            path, f"id2label has {len(values.get('id2label') or (0, 1))} labels; a reranker has one"
        )
    for key, neutral in _NEUTRAL.items():
        if key in values and values[key] not in neutral:
            raise unsupported(path, f"{key} is {values[key]!r}, which is not computed here")
    sizes = {key: _size(path, values, key) for key in _RANGES}
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if hidden % heads:
        raise invalid(path, f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    eps = values.get("layer_norm_eps", 1e-12)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise invalid(path, f"layer_norm_eps is {eps!r}, not between 0 and 1")
    _check_modules(directory)
    return EncoderConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=hidden,
        layers=sizes["num_hidden_layers"],
        heads=heads,
        ffn_size=sizes["intermediate_size"],
        positions=sizes["max_position_embeddings"],
        token_types=sizes["type_vocab_size"],
        norm_eps=eps,
        max_tokens=_max_tokens(directory, sizes["max_position_embeddings"]),
        pooling=_pooling(directory),
    )


def _size(path: Path, values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    least, most = _RANGES[key]
    if type(value) is not int or not least <= value <= most:
        raise invalid(path, f"{key} is {value!r}, not a whole number from {least} to {most}")
    return value


def _check_modules(directory: Path) -> None:
    """Refuse a sentence-transformers model with a stage that is not computed here (a projection after the pooling)."""
    path = directory / "modules.json"
    data = read_bytes(path)
    if data is None:
        return
    # The file is a list, while everything else in a model's directory is an object.
    modules = parse_object(path, b'{"modules":' + data + b"}", "the file")["modules"]
    if not isinstance(modules, list):
        raise invalid(path, "is not a list of modules")
    for module in modules:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str) or kind.rpartition(".")[2] not in _MODULES:
            raise unsupported(path, f"has the module {kind!r}, which is not computed here")


def _max_tokens(directory: Path, positions: int) -> int:
    path = directory / "sentence_bert_config.json"
    value = (read_object(path) or {}).get("max_seq_length")
    if value is None:
        return positions
    if type(value) is not int or value < 3:
        raise invalid(path, f"max_seq_length is {value!r}, not a whole number from 3 on")
    return min(value, positions)


def _pooling(directory: Path) -> Pooling:
    path = directory / "1_Pooling" / "config.json"
    values = read_object(path)
    if values is None:
        return "mean"
    chosen = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise unsupported(
            path,
            f"pools by {', '.join(chosen) or 'nothing'}; mean tokens or the CLS token alone are computed",
        )
    return _POOLINGS[chosen[0]]
