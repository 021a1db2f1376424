"""An embedding model, opened and ready to compute."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import threadpoolctl

from stretto.embedding.config import EncoderConfig, read_encoder_config
from stretto.embedding.encoder import BertEncoder, Float32Array
from stretto.embedding.tokens import TextEncoder
from stretto.weights.blocks import RawTensor
from stretto.weights.faults import invalid, unsupported
from stretto.weights.jsonfile import read_bytes
from stretto.weights.safetensors import SafetensorsFile

_BUFFERS = frozenset({"embeddings.position_ids"})
_UNUSED = frozenset({"pooler.dense.weight", "pooler.dense.bias"})
"""The head of the pre-training, which no sentence vector is made with."""


class EmbeddingModel:
    """A directory as sentence-transformers lays it out, with a BERT encoder in ``model.safetensors``.

    Blocks while it is made (a tenth of a second or so). ``encode`` and ``forward`` may be called from several threads.

    Attributes:
        config: the architecture; ``hidden_size`` is the number of dimensions of a vector.
        texts: the tokenizer.
        fingerprint: hexadecimal; equal for equal vectors, wherever the files lie.

    Raises:
        StartupError: ``model_invalid`` or ``model_unsupported``, naming the file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config: EncoderConfig = read_encoder_config(directory)
        self.texts = TextEncoder(directory, self.config)
        path = directory / "model.safetensors"
        if not path.is_file():
            raise invalid(directory, "the file model.safetensors is missing")
        self._file = SafetensorsFile(path, buffers=_BUFFERS)
        try:
            self.encoder = BertEncoder(
                self.config, wanted_tensors(self._file, self.config.tensor_shapes(), _UNUSED)
            )
            self.fingerprint = self._fingerprint()
        except BaseException:
            self.close()
            raise
        self._blas = one_thread_each()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, however long. See ``TextEncoder.encode``."""
        return [tokenized.ids for tokenized in self.texts.encode(texts)]

    def forward(self, sequences: Sequence[Sequence[int]]) -> Float32Array:
        """See ``BertEncoder.forward``."""
        return self.encoder.forward(sequences)

    def close(self) -> None:
        """Give the mapping back. Idempotent; a computation that is under way ends as it should."""
        self._file.file.close()

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.config).encode())
        digest.update(hashlib.sha256(read_bytes(self.directory / "tokenizer.json", 1 << 28) or b"").digest())
        digest.update(self._file.file.digest(self._file.header_end))
        return digest.hexdigest()


def wanted_tensors(
    file: SafetensorsFile, wanted: Mapping[str, tuple[int, ...]], unused: Collection[str] = ()
) -> dict[str, RawTensor]:
    """Tensors of a file by name, none decoded yet.

    Args:
        file: opened.
        wanted: names and shapes; the file must have all of them.
        unused: names that it may have besides.

    Raises:
        StartupError: ``model_invalid``: one is missing or has another shape; ``model_unsupported``: there is one that nobody knows.
    """
    path, found = file.file.path, file.tensors
    for name, shape in wanted.items():
        if name not in found:
            raise invalid(path, f"tensor {name} {list(shape)} is missing")
        if found[name].shape != shape:
            raise invalid(
                path,
                f"tensor {name} has the shape {list(found[name].shape)}; the configuration asks for {list(shape)}",
            )
    for name in found:
        if name not in wanted and name not in unused:
            raise unsupported(path, f"tensor {name} is not part of the encoder as it is known here")
    tensors = {}
    for name, shape in wanted.items():
        entry = found[name]
        rows = shape[0] if len(shape) > 1 else 1
        data = file.file.data[entry.start : entry.end].reshape(rows, -1)
        tensors[name] = RawTensor(name, entry.encoding, shape, data)
    return tensors


def one_thread_each() -> object:
    """Make numpy's BLAS compute in the thread that calls it, for as long as the process lives.

    Its own threads wait by spinning, and would take the cores away from those that compute the served model: on a busy machine
    two of them are ten times slower than one. What runs in parallel here are whole batches.
    """
    numpy_libraries = [
        library["filepath"]
        for library in threadpoolctl.threadpool_info()
        if "numpy" in library["filepath"] or library["prefix"] == "libscipy_openblas"
    ]
    return threadpoolctl.ThreadpoolController().select(filepath=numpy_libraries).limit(limits=1)
