"""A model directory of an architecture that has no module here, for ``transformers`` to compute."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from stretto.errors import StartupError
from stretto.weights.checkpoint import Checkpoint
from stretto.weights.faults import unsupported
from stretto.weights.hf_reader import short
from stretto.weights.huggingface import HuggingFaceModel
from stretto.weights.source import ModelSource

_MOVING = ("dynamic", "longrope", "su")
INSTALL = "pip install 'stretto[torch,transformers]'"


class ForeignCheckpoint(Checkpoint):
    """See Checkpoint.

    Attributes:
        reason: why no module of ours computes it; a sentence.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path)
        self.reason = reason
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Refuse what would be computed wrongly, or by program code that came with the files."""
        values, path = self.text_values, self.path / "config.json"
        for packed in ("quantization_config", "quantization"):
            if self.config_values.get(packed) is not None:
                raise unsupported(
                    path,
                    f"{packed} is {short(self.config_values[packed])}: its weights are packed",
                    remedy="--backend mlx computes it." if packed == "quantization" else None,
                )
        if self.config_values.get("auto_map") is not None and "model_type" not in self.config_values:
            raise unsupported(path, "auto_map names program code of its own, which is not run")
        rope = values.get("rope_parameters") or values.get("rope_scaling")
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
        if kind in _MOVING:
            raise unsupported(
                path,
                f"rope_type is {kind!r}: its positions turn by the longest sequence of a step, whoever's that is",
            )
        if "chunked_attention" in (values.get("layer_types") or ()):
            raise unsupported(path, "layer_types has chunked_attention")

    @property
    def parameters(self) -> int:
        """How many weights the files hold."""
        return sum(math.prod(tensor.shape) for shard in self.shards for tensor in shard.tensors.values())


def open_for_torch(path: Path) -> ModelSource | ForeignCheckpoint:
    """Open a directory for PyTorch: as a model of ours, or, where its architecture is not known here, for ``transformers``.

    Raises:
        StartupError: as ``HuggingFaceModel``; with the remedy to install ``transformers`` where that may help.
    """
    try:
        return HuggingFaceModel(path)
    except StartupError as error:
        if error.code != "model_unsupported":
            raise
        if importlib.util.find_spec("transformers") is None:
            raise StartupError(
                error.message,
                code=error.code,
                remedy=f"transformers may know it: {INSTALL}",
            ) from error
        return ForeignCheckpoint(path, error.message)
