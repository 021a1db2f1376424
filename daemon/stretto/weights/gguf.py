"""The GGUF container: metadata and tensor table over a mapped file, every length checked before it is used.

Layout (versions 2 and 3, little-endian; specified in ggml's ``docs/gguf.md``): the magic ``GGUF``, u32 version, u64
number of tensors, u64 number of metadata entries; the entries (key, u32 type, value); the tensor table (name, u32
number of dimensions, u64 each with the contiguous one first, u32 encoding, u64 offset from the data section); padding to
``general.alignment``; the data section. Strings are a u64 length and UTF-8; arrays are u32 type, u64 length, values.

Arrays are only measured while the header is walked and decoded when asked for: a vocabulary of 152,000 tokens costs
hundredths of a second to open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from stretto.weights.blocks import ENCODINGS
from stretto.weights.faults import invalid, unsupported
from stretto.weights.mapping import MappedFile

MAX_ENTRIES = 65_536
"""Most metadata entries, and most tensors, that a file may announce."""

MAX_STRING_BYTES = 16 << 20
"""Longest string value (chat templates are the longest in practice)."""

MAX_NAME_BYTES = 65_535
"""Longest key or tensor name, as the specification has it."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_TYPE_NAMES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFArray:
    """An array value: where it lies. ``strings`` or ``numbers`` decodes it.

    Attributes:
        key: the metadata key, for messages.
        kind: GGUF's type number of the elements.
        count: number of elements.
        start: byte offset of the first element; end: of the byte after the last.
    """

    file: MappedFile
    key: str
    kind: int
    count: int
    start: int
    end: int

    def strings(self) -> list[str]:
        """The elements of an array of strings. Raises StartupError for another type or for bytes that are no UTF-8."""
        if self.kind != _STRING:
            raise invalid(self.file.path, f"{self.key} at offset {self.start} is not an array of strings")
        data = self.file.data[self.start : self.end].tobytes()
        unpack, position, begin = _U64.unpack_from, 0, 0
        try:
            # One expression a string: slices evaluate from left to right. Vocabularies have hundreds of thousands.
            found = [
                data[(begin := position + 8) : (position := begin + unpack(data, position)[0])].decode()
                for _ in range(self.count)
            ]
        except UnicodeDecodeError as error:
            offset = self.start + begin
            raise invalid(
                self.file.path, f"{self.key} has a string at offset {offset} that is not UTF-8"
            ) from error
        return found

    def numbers(self) -> npt.NDArray[np.generic]:
        """The elements of an array of numbers, a read-only view. Raises StartupError for an array of strings."""
        dtype = _NUMBERS.get(self.kind)
        if dtype is None:
            raise invalid(self.file.path, f"{self.key} at offset {self.start} is not an array of numbers")
        return self.file.data[self.start : self.end].view(dtype)


Value = int | float | bool | str | GGUFArray


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table.

    Attributes:
        name: as in the file.
        encoding: a key of ``ENCODINGS``.
        shape: row-major (the reverse of the file's order).
        start: byte offset in the file.
        nbytes: bytes in the file.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class _Walk:
    """A position in the header that never leaves the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    def fail(self, what: str, offset: int | None = None) -> NoReturn:
        raise invalid(self.file.path, f"{what} at offset {self.position if offset is None else offset}")

    def take(self, size: int, what: str) -> int:
        """Step over ``size`` bytes and give the offset they begin at."""
        start = self.position
        if size > self.file.size_bytes - start:
            self.fail(f"{what} of {size} bytes runs past the end of the file ({self.file.size_bytes} bytes)")
        self.position = start + size
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.file.map, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.file.map, self.take(8, what))[0]
        return value

    def text(self, what: str, limit: int) -> str:
        size = self.u64(f"the length of {what}")
        if size > limit:
            self.fail(f"{what} of {size} bytes (at most {limit} are allowed)", self.position - 8)
        start = self.take(size, what)
        try:
            return self.file.map[start : start + size].decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", start)

    def value(self, key: str) -> Value:
        kind = self.u32(f"the type of {key}")
        if kind == _STRING:
            return self.text(key, MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(key)
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self.fail(f"{key} has the unknown type {kind}", self.position - 4)
        size = np.dtype(dtype).itemsize
        start = self.take(size, key)
        number: int | float | bool = self.file.data[start : start + size].view(dtype)[0].item()
        return number

    def array(self, key: str) -> GGUFArray:
        kind = self.u32(f"the element type of {key}")
        count = self.u64(f"the length of {key}")
        if kind == _ARRAY:
            raise unsupported(self.file.path, f"{key} at offset {self.position} is an array of arrays")
        if kind == _STRING:
            start = self.position
            self._step_over_strings(key, count)
            return GGUFArray(self.file, key, kind, count, start, self.position)
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self.fail(f"{key} has the unknown element type {kind}", self.position - 12)
        start = self.take(np.dtype(dtype).itemsize * count, key)
        return GGUFArray(self.file, key, kind, count, start, self.position)

    def _step_over_strings(self, key: str, count: int) -> None:
        position, size = self.position, self.file.size_bytes
        if count > (size - position) // 8:
            self.fail(f"{key} announces {count} strings, more than the file has room for", position - 8)
        data, unpack, last = self.file.map, _U64.unpack_from, size - 8
        for index in range(count):
            if position > last:
                self.fail(f"{key} ends within the length of string {index}", position)
            position += 8 + unpack(data, position)[0]
        # One check for all: a length that jumps out of the file fails the check above at the next string.
        if position > size:
            self.fail(f"the last string of {key} runs past the end of the file ({size} bytes)", self.position)
        self.position = position


class GGUFFile:
    """A parsed GGUF file.

    Attributes:
        file: the mapping.
        version: 2 or 3.
        metadata: by key, in the file's order.
        tensors: by name, in the file's order.
        data_start: offset of the data section, the end of the header.

    Raises:
        StartupError: ``model_invalid`` naming the offset, or ``model_unsupported`` naming the tensor or key.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            self._parse()
        except BaseException:
            self.file.close()
            raise

    def _parse(self) -> None:
        path, walk = self.file.path, _Walk(self.file)
        start = walk.take(4, "the magic number")
        magic = self.file.map[start : start + 4]
        if magic != b"GGUF":
            raise invalid(path, f"is not a GGUF file: it begins with {magic!r}")
        self.version = walk.u32("the version")
        if self.version not in (2, 3):
            if self.version & 0xFFFF == 0:
                raise unsupported(path, "is a big-endian GGUF file (version at offset 4)")
            raise unsupported(path, f"is GGUF version {self.version} (offset 4); versions 2 and 3 are read")
        tensors = self._count(walk, "tensors")
        entries = self._count(walk, "metadata entries")
        self.metadata: dict[str, Value] = {}
        for _ in range(entries):
            offset = walk.position
            key = walk.text("a metadata key", MAX_NAME_BYTES)
            if key in self.metadata:
                walk.fail(f"the metadata key {key} comes twice", offset)
            self.metadata[key] = walk.value(key)
        table = [self._table_entry(walk) for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if (
            isinstance(alignment, bool)
            or not isinstance(alignment, int)
            or alignment < 1
            or alignment & (alignment - 1)
        ):
            raise invalid(path, f"general.alignment is {alignment!r}, not a power of two")
        self.data_start = min(-(-walk.position // alignment) * alignment, self.file.size_bytes)
        self.tensors = self._place(table, alignment)

    @staticmethod
    def _count(walk: _Walk, what: str) -> int:
        offset = walk.position
        count = walk.u64(f"the number of {what}")
        if count > MAX_ENTRIES:
            walk.fail(f"the header announces {count} {what} (at most {MAX_ENTRIES} are read)", offset)
        return count

    @staticmethod
    def _table_entry(walk: _Walk) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape in row-major order, encoding number, offset in the data section)."""
        name = walk.text("a tensor name", MAX_NAME_BYTES)
        dimensions = walk.u32(f"the number of dimensions of tensor {name}")
        if not 1 <= dimensions <= 4:
            walk.fail(f"tensor {name} has {dimensions} dimensions", walk.position - 4)
        shape = [walk.u64(f"a dimension of tensor {name}") for _ in range(dimensions)]
        if 0 in shape:
            walk.fail(f"tensor {name} has an empty dimension", walk.position - 8 * dimensions)
        return (
            name,
            tuple(reversed(shape)),
            walk.u32(f"the type of {name}"),
            walk.u64(f"the offset of {name}"),
        )

    def _place(
        self, table: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, GGUFTensor]:
        path, tensors = self.file.path, dict[str, GGUFTensor]()
        for name, shape, kind, offset in table:
            type_name = _TYPE_NAMES.get(kind, f"number {kind}")
            encoding = ENCODINGS.get(type_name)
            if encoding is None:
                raise unsupported(
                    path,
                    f"tensor {name} has the type {type_name}",
                    remedy=f"Readable are {', '.join(ENCODINGS)}.",
                )
            if name in tensors:
                raise invalid(path, f"tensor {name} comes twice in the tensor table")
            try:
                nbytes = encoding.row_bytes(shape[-1])
            except ValueError as error:
                raise invalid(path, f"tensor {name}: {error}") from error
            for rows in shape[:-1]:
                nbytes *= rows
            if offset % alignment:
                raise invalid(
                    path, f"tensor {name} lies at data offset {offset}, not a multiple of {alignment}"
                )
            start = self.data_start + offset
            if start + nbytes > self.file.size_bytes:
                raise invalid(
                    path,
                    f"tensor {name} takes bytes {start} to {start + nbytes}, but the file ends at"
                    f" {self.file.size_bytes}; it is truncated or its header is wrong",
                )
            tensors[name] = GGUFTensor(name, encoding.name, shape, start, nbytes)
        placed = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(placed):
            if before.start + before.nbytes > after.start:
                raise invalid(path, f"tensors {before.name} and {after.name} overlap at offset {after.start}")
        return tensors

    def keys(self, prefix: str) -> Iterator[str]:
        """Metadata keys that begin with ``prefix``."""
        return (key for key in self.metadata if key.startswith(prefix))

    def text(self, key: str) -> str | None:
        """A string value, None when absent. Raises StartupError for another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise invalid(self.file.path, f"{key} is not a string")

    def number(self, key: str) -> int | float | None:
        """A number, None when absent. An array counts when all its elements are equal (per-layer sizes)."""
        value = self.metadata.get(key)
        if isinstance(value, GGUFArray):
            elements = value.numbers()
            if elements.size == 0 or not bool((elements == elements[0]).all()):
                raise unsupported(self.file.path, f"{key} differs from layer to layer")
            value = elements[0].item()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise invalid(self.file.path, f"{key} is not a number")

    def whole(self, key: str) -> int | None:
        """A whole number, None when absent. Raises StartupError for anything else."""
        value = self.number(key)
        if value is None or isinstance(value, int):
            return value
        raise invalid(self.file.path, f"{key} is {value!r}, not a whole number")

    def flag(self, key: str) -> bool | None:
        """A truth value, None when absent. Raises StartupError for another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise invalid(self.file.path, f"{key} is {value!r}, not a truth value")

    def array(self, key: str) -> GGUFArray | None:
        """An array, None when absent. Raises StartupError for another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, GGUFArray):
            return value
        raise invalid(self.file.path, f"{key} is not an array")
