"""A model's matrices in the layout that the kernels stream, in one allocation."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stretto.backends.native.library import ENCODING_NUMBERS, Library, Matrix, address
from stretto.backends.native.program import Program
from stretto.weights.blocks import RawTensor, dequantise
from stretto.weights.source import ModelSource

LINE_BYTES = 64


class PackedWeights:
    """Packed matrices, and float32 vectors.

    Packing moves values and scales, it rounds nothing: a packed matrix has the size of the file's blocks (K encodings
    up to 3 % more, rows rounded up to 16). The pages of the file are let go of as soon as a matrix is packed, so
    loading never holds the model twice.

    Attributes:
        nbytes: bytes of the matrices and vectors.
    """

    def __init__(
        self,
        library: Library,
        pool: int,
        source: ModelSource,
        program: Program,
        report: Callable[[float], None],
    ) -> None:
        """Pack what the program uses.

        Args:
            pool: the library's thread pool.
            report: called with the fraction that is done; what it raises passes through.

        Raises:
            ValueError: a scale or a value is not a finite number; the text names the tensor.
        """
        names = tuple(dict.fromkeys(op.matrix for op in program.instructions if op.matrix))
        sizes = {name: self._size(library, source.raw(name)) for name in names}
        self.nbytes = sum(sizes.values())
        self._memory = np.empty(self.nbytes + LINE_BYTES, dtype=np.uint8)
        start = -address(self._memory) % LINE_BYTES
        self._matrices: dict[str, Matrix] = {}
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}
        done = 0
        for name in names:
            raw = source.raw(name)
            self._check(raw)
            rows = np.ascontiguousarray(raw.data)
            matrix = Matrix()
            library.call.stretto_pack(
                pool,
                ENCODING_NUMBERS[raw.encoding],
                *raw.shape,
                address(rows),
                address(self._memory) + start + done,
                ctypes.byref(matrix),
            )
            if is_mapped(raw.data):
                library.call.stretto_drop_pages(address(raw.data), raw.nbytes)
            self._matrices[name] = matrix
            done += sizes[name]
            report(done / self.nbytes)
        for op in program.instructions:
            for name in (op.vector, op.second):
                if name and name not in self._vectors:
                    self._add_vector(source.raw(name))

    @staticmethod
    def _size(library: Library, raw: RawTensor) -> int:
        size: int = library.call.stretto_packed_bytes(ENCODING_NUMBERS[raw.encoding], *raw.shape)
        return size

    def _check(self, raw: RawTensor) -> None:
        """Refuse what is not finite: one bad scale would make every later answer nonsense."""
        fault = not_finite(raw)
        if fault:
            raise ValueError(f"tensor {raw.name} has {fault} that are not finite numbers")

    def _add_vector(self, raw: RawTensor) -> None:
        values = dequantise(raw).reshape(-1)
        if not bool(np.isfinite(values).all()):
            raise ValueError(f"tensor {raw.name} has values that are not finite numbers")
        self._vectors[raw.name] = values
        self.nbytes += values.nbytes

    def matrix(self, name: str) -> Matrix:
        """One packed matrix."""
        return self._matrices[name]

    def vector(self, name: str) -> int:
        """The address of a float32 vector."""
        return address(self._vectors[name])


_HALVES: dict[str, tuple[int, tuple[int, ...]]] = {
    "Q8_0": (34, (0,)),
    "Q4_0": (18, (0,)),
    "Q4_1": (20, (0, 2)),
    "Q5_0": (22, (0,)),
    "Q5_1": (24, (0, 2)),
    "Q4_K": (144, (0, 2)),
    "Q5_K": (176, (0, 2)),
    "Q6_K": (210, (208,)),
}
"""Bytes of a block, and where its float16 parts are: all else is whole numbers."""


def not_finite(raw: RawTensor) -> str:
    """``scales`` or ``values`` when some of a tensor's are not finite, else an empty text."""
    if raw.encoding in _HALVES:
        size, places = _HALVES[raw.encoding]
        blocks = raw.data.reshape(-1, size)
        for place in places:
            # An all-ones exponent: infinity or not a number.
            if bool(((blocks[:, place + 1] & 0x7C) == 0x7C).any()):
                return "scales"
        return ""
    top = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}[raw.encoding]
    for row in range(0, raw.data.shape[0], 4096):
        words = np.ascontiguousarray(raw.data[row : row + 4096]).view(top[0])
        if bool(((words & top[1]) == top[1]).any()):
            return "values"
    return ""


def is_mapped(data: npt.NDArray[np.uint8]) -> bool:
    """Whether an array looks straight into a mapped file, whose pages can be dropped and come back by themselves."""
    base: object = data
    while True:
        if isinstance(base, np.ndarray):
            base = base.base
        elif isinstance(base, memoryview):
            base = base.obj
        else:
            return isinstance(base, mmap.mmap)
