"""The block allocator of one layer group's KV memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from stretto.backends.base import Int32Array


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for."""


class BlockPool:
    """Hands out block numbers 0 to ``blocks - 1`` and counts who holds each.

    Consecutive numbers are preferred, because a backend can read a run faster than scattered blocks: the smallest free run
    that is long enough, or else the largest runs until there are enough. What will be continued later is better placed with room
    behind it: see ``allocate``.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._holders: npt.NDArray[np.int32] = np.zeros(blocks, dtype=np.int32)
        self._free = blocks

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._free

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.blocks - self._free

    def holders(self, block: int) -> int:
        """How many hold the block."""
        return int(self._holders[block])

    def allocate(self, count: int, *, behind: int | None = None, room: int = 0) -> Int32Array:
        """Take ``count`` free blocks, each held once.

        Args:
            behind: the blocks right behind this one are taken if they are all free.
            room: else, so many free blocks are left before and behind if that is possible, so that who comes back for more may get
                the blocks behind.

        Raises:
            OutOfBlocks: there are not so many; none is taken.
        """
        if count > self._free:
            raise OutOfBlocks(f"{count} blocks are wanted, {self._free} of {self.blocks} are free")
        if count == 0:
            return np.zeros(0, dtype=np.int32)
        if (
            behind is not None
            and behind + count < self.blocks
            and not self._holders[behind + 1 : behind + 1 + count].any()
        ):
            return self._take(np.arange(behind + 1, behind + 1 + count, dtype=np.int32))
        starts, lengths = self._runs()
        start = self._apart(starts, lengths, count, room) if room else None
        if start is not None:
            return self._take(np.arange(start, start + count, dtype=np.int32))
        fitting = np.flatnonzero(lengths >= count)
        if fitting.size:
            start = int(starts[fitting[np.argmin(lengths[fitting])]])
            taken = np.arange(start, start + count, dtype=np.int32)
        else:
            largest_first = np.argsort(-lengths, kind="stable")
            enough = int(np.searchsorted(np.cumsum(lengths[largest_first]), count)) + 1
            chosen = np.sort(largest_first[:enough])
            spans = [np.arange(starts[run], starts[run] + lengths[run], dtype=np.int32) for run in chosen]
            taken = np.concatenate(spans)[:count]
        return self._take(taken)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that somebody else holds already, once more each.

        Raises:
            ValueError: one of them is free; none is shared.
        """
        numbers = self._numbers(blocks)
        np.add.at(self._holders, numbers, 1)

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of each block once; a block that nobody holds is free again.

        Raises:
            ValueError: one of them is free, or named more often than it is held; none is released.
        """
        numbers = self._numbers(blocks)
        distinct, times = np.unique(numbers, return_counts=True)
        if (self._holders[distinct] < times).any():
            raise ValueError("a block is released more often than it is held")
        self._holders[distinct] -= times.astype(np.int32)
        self._free += int((self._holders[distinct] == 0).sum())

    def free_behind(self, block: int, most: int) -> int:
        """How many blocks right behind one are free, counted up to ``most``."""
        held = np.flatnonzero(self._holders[block + 1 : block + 1 + most])
        return int(held[0]) if held.size else min(most, self.blocks - block - 1)

    @staticmethod
    def _apart(
        starts: npt.NDArray[np.intp], lengths: npt.NDArray[np.intp], count: int, room: int
    ) -> int | None:
        """Where ``count`` blocks have room around them: the first block, or None."""
        roomy = np.flatnonzero(lengths >= count + 2 * room)
        if roomy.size:
            # The smallest such run and no wider gaps: memory that was never written may not exist yet.
            run = roomy[np.argmin(lengths[roomy])]
            return int(starts[run]) + (room if starts[run] else 0)
        run = np.argmax(lengths)
        return int(starts[run] + lengths[run] // 2) if lengths[run] >= 2 * count else None

    def _take(self, blocks: Int32Array) -> Int32Array:
        self._holders[blocks] = 1
        self._free -= len(blocks)
        return blocks

    def _numbers(self, blocks: Iterable[int]) -> npt.NDArray[np.int64]:
        numbers = np.fromiter(blocks, dtype=np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.blocks):
            raise ValueError(f"block numbers are 0 to {self.blocks - 1}")
        if (self._holders[numbers] == 0).any():
            raise ValueError("a block that nobody holds cannot be shared or released")
        return numbers

    def _runs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """First block and length of each run of free blocks, in order."""
        edges = np.diff((self._holders == 0).astype(np.int8), prepend=0, append=0)
        starts = np.flatnonzero(edges == 1)
        return starts, np.flatnonzero(edges == -1) - starts
