"""What an opened model is, whatever its format: configuration, tensors as they lie on disk, tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from stretto.weights.blocks import RawTensor
from stretto.weights.config import ModelConfig
from stretto.weights.faults import invalid, unsupported
from stretto.weights.tokenizer import Tokenizer


class ModelFiles(ABC):
    """A model's files, opened: what there is to know of a model whoever computes it. No weights have been read.

    Attributes:
        path: the file or directory.
        format: ``gguf`` or ``hf``.
        name: a name for people, from the file or from its path.
        chat_template: Jinja source, or None when the model brings none.
        fingerprint: hexadecimal; equal for equal weights and metadata, wherever they lie.
    """

    path: Path
    format: str
    name: str
    chat_template: str | None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """See the class."""

    @abstractmethod
    def build_tokenizer(self) -> Tokenizer:
        """Build the model's tokenizer. Raises StartupError."""

    @abstractmethod
    def close(self) -> None:
        """Give the mapping back. Idempotent; arrays that were handed out stay valid."""


class ModelSource(ModelFiles):
    """A model whose architecture is known here, checked against its tensors; ``raw`` maps them in as they are touched.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    def tensor_names(self) -> tuple[str, ...]:
        """Canonical names (those of Hugging Face's llama) of the tensors that the model consists of."""
        return tuple(self.config.tensor_shapes())

    @abstractmethod
    def raw(self, name: str) -> RawTensor:
        """One tensor, undecoded. Raises KeyError for a name that ``tensor_names`` does not give."""


def check_tensors(path: Path, config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the tensors of a file with those that the configuration asks for.

    Raises:
        StartupError: ``model_invalid`` for a missing tensor or a wrong shape, ``model_unsupported`` for a tensor that
            this architecture does not have (it would be left out of the computation).
    """
    wanted = config.tensor_shapes()
    for name, shape in wanted.items():
        if name not in found:
            raise invalid(path, f"tensor {name} {list(shape)} is missing")
        if found[name] != shape:
            raise invalid(
                path,
                f"tensor {name} has the shape {list(found[name])}; the configuration asks for {list(shape)}",
            )
    for name in found:
        if name not in wanted:
            raise unsupported(
                path, f"tensor {name} is not part of the {config.family} architecture as it is known here"
            )
