"""The safetensors container over a mapped file, every length checked before it is used.

Layout (specified in the ``safetensors`` project's README): u64 length of the header, little-endian; the header, a JSON
object of ``{name: {"dtype", "shape", "data_offsets": [begin, end]}}`` with offsets from its end, and optionally
``__metadata__``; the data, without gaps.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from stretto.weights.blocks import ENCODINGS
from stretto.weights.faults import invalid, unsupported
from stretto.weights.jsonfile import parse_object
from stretto.weights.mapping import MappedFile

MAX_HEADER_BYTES = 32 << 20
"""Longest header that is read; the largest published checkpoints stay below a quarter of it."""

_OTHER_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of a value, for packed weights and their scales, and for buffers that are no weights."""


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One entry: encoding (a key of ``ENCODINGS``, or the file's own name of a packed type), shape, and where its bytes lie."""

    name: str
    encoding: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A parsed safetensors file.

    Args:
        path: of the file.
        buffers: names of entries that are no weights (position numbers that old checkpoints carry along): they may hold whole
            numbers, and are not among ``tensors``.
        packed: let every type of the format in; else a tensor that is not F32, F16 or BF16 is refused.

    Attributes:
        file: the mapping.
        header_end: where the data begin.
        tensors: by name.
        made_by: ``format`` of the file's metadata, e.g. ``pt`` or ``mlx``; empty when it does not say.

    Raises:
        StartupError: ``model_invalid`` or ``model_unsupported``, naming the tensor.
    """

    def __init__(self, path: Path, *, buffers: Collection[str] = (), packed: bool = False) -> None:
        self._packed = packed
        self.file = MappedFile(path)
        try:
            self._parse(buffers)
        except BaseException:
            self.file.close()
            raise

    def _parse(self, buffers: Collection[str]) -> None:
        path, size = self.file.path, self.file.size_bytes
        if size < 8:
            raise invalid(path, f"has {size} bytes, too few for a safetensors file")
        length = int.from_bytes(self.file.map[:8], "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise invalid(
                path,
                f"announces a header of {length} bytes at offset 0 (the file has {size}, at most {MAX_HEADER_BYTES})",
            )
        self.header_end = 8 + length
        header = parse_object(path, self.file.map[8 : self.header_end], "the header")
        metadata = header.pop("__metadata__", None)
        made_by = metadata.get("format") if isinstance(metadata, dict) else None
        self.made_by = made_by if isinstance(made_by, str) else ""
        entries = {name: self._entry(name, entry, buffer=name in buffers) for name, entry in header.items()}
        self.tensors = {name: tensor for name, tensor in entries.items() if name not in buffers}
        position = self.header_end
        for tensor in sorted(entries.values(), key=lambda tensor: (tensor.start, tensor.end)):
            if tensor.start != position:
                raise invalid(
                    path, f"tensor {tensor.name} begins at offset {tensor.start}, not at {position}"
                )
            position = tensor.end
        if position != size:
            raise invalid(path, f"ends at {size}, but its tensors at {position}")

    def _entry(self, name: str, entry: object, *, buffer: bool) -> SafeTensor:
        path = self.file.path
        if not isinstance(entry, dict):
            raise invalid(path, f"tensor {name} is not described by an object")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        value_bytes = _value_bytes(dtype, buffer or self._packed) if isinstance(dtype, str) else None
        if not isinstance(dtype, str) or value_bytes is None:
            raise unsupported(
                path, f"tensor {name} has the type {dtype!r}", remedy="Readable are F32, F16 and BF16."
            )
        if not _naturals(shape) or not (0 if self._packed else 1) <= len(shape) <= 4 or 0 in shape:
            raise invalid(path, f"tensor {name} has the shape {shape!r}")
        if not _naturals(offsets) or len(offsets) != 2:
            raise invalid(path, f"tensor {name} has the data_offsets {offsets!r}")
        begin, end = offsets
        nbytes = value_bytes
        for extent in shape:
            nbytes *= extent
        if end - begin != nbytes:
            raise invalid(path, f"tensor {name} of {nbytes} bytes has the data_offsets {offsets}")
        if self.header_end + end > self.file.size_bytes:
            raise invalid(
                path,
                f"tensor {name} ends at offset {self.header_end + end}, but the file at {self.file.size_bytes};"
                " it is truncated or its header is wrong",
            )
        return SafeTensor(name, dtype, tuple(shape), self.header_end + begin, self.header_end + end)


def _value_bytes(dtype: str, other: bool) -> int | None:
    encoding = ENCODINGS.get(dtype)
    if encoding is not None and encoding.block_values == 1:
        return encoding.block_bytes
    return _OTHER_BYTES.get(dtype) if other else None


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)
