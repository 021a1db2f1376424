"""A model file, mapped read-only: bytes are read when they are touched, and shared between processes."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stretto.errors import StartupError
from stretto.weights.faults import invalid

_SAMPLES = 64
_SAMPLE_BYTES = 4096


class MappedFile:
    """One regular file as an array of bytes.

    Raises:
        StartupError: ``model_not_found`` when it cannot be opened, ``model_invalid`` when it is empty or no file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise StartupError(
                f"{path}: cannot be opened: {error.strerror}.", code="model_not_found"
            ) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise invalid(path, "is not a regular file")
            if found.st_size == 0:
                raise invalid(path, "is empty")
            self.map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self.size_bytes = len(self.map)
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self.map, dtype=np.uint8)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """uint8 [size_bytes], read-only. Raises ValueError after ``close``."""
        if self._bytes is None:
            raise ValueError(f"{self.path} is closed")
        return self._bytes

    def digest(self, header_end: int) -> bytes:
        """A hash over the size, all bytes before ``header_end`` and evenly spread samples of what follows.

        Cheap whatever the size, the same wherever the file lies, and different for different weights (two files of
        equal size and header whose tensors differ in no sampled page are not told apart).
        """
        digest = hashlib.sha256(self.size_bytes.to_bytes(8, "little"))
        room = self.size_bytes - header_end
        with memoryview(self.map) as data:
            digest.update(data[:header_end])
            for index in range(min(_SAMPLES, -(-room // _SAMPLE_BYTES))):
                start = header_end + (room - 1) * index // _SAMPLES
                digest.update(data[start : start + _SAMPLE_BYTES])
            digest.update(data[max(header_end, self.size_bytes - _SAMPLE_BYTES) :])
        return digest.digest()

    def close(self) -> None:
        """Give the mapping back, at once or with the last array that looks into it. Idempotent."""
        self._bytes = None
        try:
            self.map.close()
        except BufferError:
            # A caller still holds a view; the mapping goes with it.
            return
