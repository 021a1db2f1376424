"""Typed look-ups in a GGUF file's metadata and small tensors, for one architecture."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFArray, GGUFFile


class GGUFReader:
    """Values of ``<architecture>.<key>``. Raises StartupError naming a key that is missing or of the wrong type.

    Attributes:
        path: of the file, for messages.
    """

    def __init__(self, file: GGUFFile, arch: str, tensors: Container[str]) -> None:
        """``tensors``: canonical names of those that the file has."""
        self.path: Path = file.file.path
        self._file, self._arch, self._tensors = file, arch, tensors

    def whole(self, key: str, otherwise: int | None = None) -> int:
        """A whole number."""
        value = self._file.whole(f"{self._arch}.{key}")
        if value is None:
            value = otherwise
        if value is None:
            raise self.missing(key)
        return value

    def number(self, key: str, otherwise: float | None = None) -> float:
        """A number."""
        value = self._file.number(f"{self._arch}.{key}")
        if value is None:
            value = otherwise
        if value is None:
            raise self.missing(key)
        return float(value)

    def sliding(self, layers: int, otherwise: int) -> tuple[bool, ...]:
        """Which layers have a sliding window: each one's truth value, or all but every so-many-th."""
        key = f"{self._arch}.attention.sliding_window_pattern"
        value = self._file.metadata.get(key)
        if not isinstance(value, GGUFArray):
            pattern = self.whole("attention.sliding_window_pattern", otherwise)
            if pattern < 1:
                raise invalid(self.path, f"{key} is {pattern}")
            return tuple(bool((layer + 1) % pattern) for layer in range(layers))
        if value.count != layers:
            raise invalid(self.path, f"{key} has {value.count} entries for {layers} layers")
        return tuple(bool(item) for item in value.numbers())

    def missing(self, key: str) -> Exception:
        """The refusal of a file without a key."""
        return invalid(self.path, f"the metadata key {self._arch}.{key} is missing")

    def has_key(self, key: str) -> bool:
        """Whether the key is there."""
        return f"{self._arch}.{key}" in self._file.metadata

    def has(self, tensor: str) -> bool:
        """Whether a tensor is there, by canonical name."""
        return tensor in self._tensors

    def vector(self, name: str) -> tuple[float, ...] | None:
        """Values of a float32 vector, by its name in the file; None without it."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            return None
        if tensor.encoding != "F32" or len(tensor.shape) != 1:
            raise unsupported(
                self.path, f"tensor {name} is {tensor.encoding} {list(tensor.shape)}, not an F32 vector"
            )
        data = self._file.file.data[tensor.start : tensor.start + tensor.nbytes].view("<f4")
        return tuple(float(value) for value in data)
