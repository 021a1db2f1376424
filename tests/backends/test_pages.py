"""KV memory takes what is written of it, and no huge pages around that."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.pages import sparse_bytes

HUGE_BYTES = 2 << 20


def resident_bytes(address: int) -> int:
    """What of the mapping at an address is in memory, as the kernel counts it."""
    for mapping in re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE
    ):
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", mapping)
        if bounds and int(bounds[1], 16) <= address < int(bounds[2], 16):
            found = re.search(r"^Rss: +(\d+) kB$", mapping, flags=re.MULTILINE)
            assert found
            return int(found[1]) * 1024
    raise AssertionError("the address is in no mapping")


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux shows them")
def test_a_byte_takes_a_page() -> None:
    memory = sparse_bytes(64 * HUGE_BYTES)
    assert not memory[::HUGE_BYTES].any()
    memory[HUGE_BYTES // 2 :: HUGE_BYTES] = 7
    assert resident_bytes(memory.ctypes.data + HUGE_BYTES) <= 4 * 64 * 65536  # pages of up to 64 KB
    assert memory.sum(dtype=np.int64) == 7 * 64


def test_it_is_writable_zero_and_of_the_size_asked_for() -> None:
    for count in (1, 4096, 100_001):
        memory = sparse_bytes(count)
        assert memory.shape == (count,)
        assert not memory.any()
        assert memory.flags.writeable
    assert sparse_bytes(0).shape == (0,)


def test_more_than_there_can_be_is_refused() -> None:
    with pytest.raises(MemoryError):
        sparse_bytes(1 << 62)
