"""A model directory whatever its architecture and however its weights are packed, for backends with model code of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.weights.faults import invalid
from stretto.weights.hf_directory import HuggingFaceDirectory

_TABLES = ("embed_tokens.weight", "wte.weight", "tok_embeddings.weight", "word_embeddings.weight")


class Checkpoint(HuggingFaceDirectory):
    """See HuggingFaceDirectory. Headers of the weight files are checked, what the tensors mean is not.

    Attributes:
        quantization: config.json's ``quantization``, by which MLX checkpoints say how they are packed; None without.
        made_by_mlx: the weights were written by MLX, in its names and layouts.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        found = self.config_values.get("quantization")
        if found is not None and not isinstance(found, dict):
            raise invalid(path / "config.json", "quantization is not an object")
        self.quantization: Mapping[str, Any] | None = found
        try:
            self._open_shards(packed=True)
        except BaseException:
            self.close()
            raise
        self.made_by_mlx = found is not None or any(shard.made_by == "mlx" for shard in self.shards)

    @property
    def text_values(self) -> Mapping[str, Any]:
        """The language model's part of config.json: ``text_config`` of a model that also sees or hears, else all of it."""
        part = self.config_values.get("text_config")
        return part if isinstance(part, dict) else self.config_values

    @property
    def vocab_size(self) -> int:
        """See HuggingFaceDirectory."""
        for values in (self.text_values, self.config_values):
            found = values.get("vocab_size")
            if type(found) is int and found > 0:
                return found
        for name, shard in self.shard_of.items():
            if name.endswith(_TABLES):
                return shard.tensors[name].shape[0]
        raise invalid(self.path / "config.json", "vocab_size is missing")

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as they lie in the files."""
        return sum(tensor.end - tensor.start for shard in self.shards for tensor in shard.tensors.values())
