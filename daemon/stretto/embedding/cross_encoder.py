"""A reranking model: a BERT encoder that reads two texts together, and a head that says how well the second answers the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stretto.embedding.config import CLASSIFIER, EncoderConfig, read_encoder_config
from stretto.embedding.encoder import BertEncoder, Float32Array
from stretto.embedding.model import one_thread_each, wanted_tensors
from stretto.embedding.tokens import TextEncoder
from stretto.weights.blocks import dequantise
from stretto.weights.faults import invalid
from stretto.weights.safetensors import SafetensorsFile

_PREFIX = "bert."
_POOLER, _HEAD = f"{_PREFIX}pooler.dense", "classifier"


class CrossEncoder:
    """A directory with a ``BertForSequenceClassification`` of one label in ``model.safetensors``, as sentence-transformers saves it.

    Blocks while it is made. ``scores`` may be called from several threads.

    Attributes:
        config: the architecture of the encoder.
        texts: the tokenizer.

    Raises:
        StartupError: ``model_invalid`` or ``model_unsupported``, naming the file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config: EncoderConfig = read_encoder_config(directory, CLASSIFIER)
        self.texts = TextEncoder(directory, self.config)
        path = directory / "model.safetensors"
        if not path.is_file():
            raise invalid(directory, "the file model.safetensors is missing")
        self._file = SafetensorsFile(path, buffers=frozenset({f"{_PREFIX}embeddings.position_ids"}))
        try:
            hidden = self.config.hidden_size
            shapes: dict[str, tuple[int, ...]] = {
                f"{_PREFIX}{name}": shape for name, shape in self.config.tensor_shapes().items()
            }
            shapes |= {f"{_POOLER}.weight": (hidden, hidden), f"{_POOLER}.bias": (hidden,)}
            shapes |= {f"{_HEAD}.weight": (1, hidden), f"{_HEAD}.bias": (1,)}
            tensors = wanted_tensors(self._file, shapes)
            self.encoder = BertEncoder(
                self.config, {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
            )
            self._pooler = dequantise(tensors[f"{_POOLER}.weight"]).T, dequantise(tensors[f"{_POOLER}.bias"])
            self._head = dequantise(tensors[f"{_HEAD}.weight"]).T, dequantise(tensors[f"{_HEAD}.bias"])
        except BaseException:
            self.close()
            raise
        self._blas = one_thread_each()

    def scores(self, pairs: Sequence[Sequence[int]], first_parts: Sequence[int]) -> Float32Array:
        """How well the second text of each pair answers its first.

        Args:
            pairs: token ids, control tokens included.
            first_parts: how many of each are the first text's, its two control tokens included.

        Returns:
            float32 [pairs], each from 0 to 1: the logistic function of the head's output.
        """
        states = self.encoder.first_states(pairs, first_parts)
        pooled = np.tanh(states @ self._pooler[0] + self._pooler[1])
        logits: Float32Array = (pooled @ self._head[0] + self._head[1])[:, 0]
        # By the tangent, since the exponential overflows.
        scores: Float32Array = np.float32(0.5) * (np.float32(1) + np.tanh(logits * np.float32(0.5)))
        return scores

    def close(self) -> None:
        """Give the mapping back. Idempotent."""
        self._file.file.close()
