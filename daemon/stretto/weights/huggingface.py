"""A model directory of Hugging Face's whose architecture is known here."""

from __future__ import annotations

import math
import re
from pathlib import Path

from stretto.weights.blocks import RawTensor
from stretto.weights.hf_config import read_hf_config
from stretto.weights.hf_directory import HuggingFaceDirectory
from stretto.weights.source import ModelSource, check_tensors

_SENSES = re.compile(r"(model\.)?(vision|audio|multi_modal|embed_vision|embed_audio)")
"""Tensors of a model's other parts, which see and hear. A language model has none whose name begins like that."""


def _of_language_model(name: str) -> str:
    """The name that a tensor has in a model that is a language model alone."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


class HuggingFaceModel(HuggingFaceDirectory, ModelSource):
    """See ModelSource. Raises StartupError naming the file that is missing, broken or cannot be computed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = read_hf_config(path / "config.json", self.config_values)
        try:
            self._open_shards(packed=False)
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        self._names = {_of_language_model(name): name for name in self.shard_of if not _SENSES.match(name)}
        found = {
            name: self.shard_of[full].tensors[full].shape
            for name, full in self._names.items()
            # Old checkpoints carry the frequencies that follow from the configuration; some carry the tied table twice.
            if not name.endswith(".rotary_emb.inv_freq")
            and not (name == "lm_head.weight" and self.config.tied_embeddings)
        }
        check_tensors(self.path, self.config, found)

    @property
    def vocab_size(self) -> int:
        """See HuggingFaceDirectory."""
        return self.config.vocab_size

    def raw(self, name: str) -> RawTensor:
        """See ModelSource."""
        if name == "lm_head.weight" and self.config.tied_embeddings:
            raise KeyError(name)
        full = self._names[name]
        file = self.shard_of[full]
        tensor = file.tensors[full]
        rows = math.prod(tensor.shape[:-1])
        data = file.file.data[tensor.start : tensor.end].reshape(rows, -1)
        return RawTensor(name, tensor.encoding, tensor.shape, data)
