"""Memory that the operating system gives page by page, as it is first written."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt


def sparse_bytes(count: int) -> npt.NDArray[np.uint8]:
    """uint8 [count], zero, of which only small pages that were written take memory.

    numpy asks Linux for huge pages where an array is large: then a few kilobytes written in 2 MB take all of them, and blocks of KV memory lie
    scattered over every layer's part.

    Raises:
        MemoryError: so much address space cannot be had.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # other systems have no such pages, or give none unasked
        return np.zeros(count, dtype=np.uint8)
    try:
        pages = mmap.mmap(-1, max(1, count), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{count} bytes cannot be mapped") from error
    with contextlib.suppress(OSError):  # of a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8, count=count)
