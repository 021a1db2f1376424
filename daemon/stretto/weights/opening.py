"""Open a model of any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stretto.weights.checkpoint import Checkpoint
from stretto.weights.foreign import open_for_torch
from stretto.weights.gguf_model import GGUFModel
from stretto.weights.huggingface import HuggingFaceModel
from stretto.weights.source import ModelFiles, ModelSource
from stretto.weights.tokenizer import Tokenizer


def open_model(path: Path) -> ModelSource:
    """Open a model and check everything about it that is cheap to check; no weights are read.

    Args:
        path: a ``.gguf`` file, or a directory as Hugging Face lays it out.

    Raises:
        StartupError: ``model_not_found``; ``model_invalid`` (broken, truncated, contradicts itself) or
            ``model_unsupported`` (sound, but not computable here), naming the offset, tensor or key.
    """
    return HuggingFaceModel(path) if path.is_dir() else GGUFModel(path)


def open_any(path: Path) -> ModelFiles:
    """Open a model for PyTorch, which computes what ``open_model`` opens, and by ``transformers`` other directories.

    Raises:
        StartupError: as ``open_model``.
    """
    return open_for_torch(path) if path.is_dir() else GGUFModel(path)


def open_files(
    path: Path, *, mlx_first: bool = False, otherwise: Callable[[Path], ModelFiles] = open_model
) -> ModelFiles:
    """Open a model that any backend might compute: one packed for MLX as a ``Checkpoint``, others as ``open_model``.

    Args:
        path: as for ``open_model``.
        otherwise: what opens what is not for MLX.
        mlx_first: as a ``Checkpoint`` also what MLX wrote without packing it, which other backends may compute too.

    Raises:
        StartupError: as ``open_model``.
    """
    if path.is_dir():
        checkpoint = Checkpoint(path)
        if checkpoint.quantization is not None or (mlx_first and checkpoint.made_by_mlx):
            return checkpoint
        checkpoint.close()
    return otherwise(path)


def load_tokenizer(source: ModelFiles) -> Tokenizer:
    """Build the tokenizer of an opened model. Raises StartupError."""
    return source.build_tokenizer()
