"""The blocks of a layer group that looks back a window only: a sequence holds those that its window reaches, and no more.

What it leaves behind stays with the known text that it was published as, until the room is needed. Known text whose window's blocks
are gone can still be followed, from the next place on where they are not: see ``reachable``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stretto.backends.base import Int32Array
from stretto.backends.chunks import first_needed
from stretto.engine.blocks import BlockPool
from stretto.engine.budget import WindowNeed, blocks_for
from stretto.engine.live import LiveSequence
from stretto.engine.prefix import PrefixNode

GONE = -1
"""In a block table and in a node: no block any more, or none yet."""


class WindowBlocks:
    """One layer group's blocks.

    Each sequence claims as many blocks as it may ever hold at once, before it starts; claims never exceed the pool, so what a
    sequence needs is free, or kept for known text alone.

    Args:
        group: its number.
        blocks: in the pool.
        need: what a sequence may hold at once.
        block_tokens: tokens a block.
    """

    def __init__(self, group: int, blocks: int, need: WindowNeed, block_tokens: int) -> None:
        self.group = group
        self.need = need
        self.pool = BlockPool(blocks)
        self._block_tokens = block_tokens
        self._claimed = 0
        self._idle: dict[int, PrefixNode] = {}  # kept for known text alone, the longest unused first
        self.given_up = 0
        """Blocks of known text that were given up for others."""

    @property
    def idle(self) -> int:
        """Blocks that are kept for known text alone."""
        return len(self._idle)

    def claim(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens claims."""
        return min(blocks_for(tokens, self._block_tokens), self.need.blocks)

    def has_room(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens may start."""
        return self._claimed + self.claim(tokens) <= self.pool.blocks

    def start(self, sequence: LiveSequence) -> Int32Array:
        """Claim for a sequence; its table up to the end of its chain, of which it holds what its window reaches."""
        self._claimed += self.claim(sequence.reserved_tokens)
        return self._follow(np.zeros(0, dtype=np.int32), sequence.chain)

    def extend(self, table: Int32Array, chain: Sequence[PrefixNode], known: int) -> Int32Array:
        """The table of a sequence whose chain has grown by known text behind its first ``known`` blocks."""
        self._release(table, known, len(table), ())
        table = self._follow(table[:known], chain)
        return self.leave_behind(table, chain, len(chain) * self._block_tokens)

    def leave_behind(self, table: Int32Array, chain: Sequence[PrefixNode], position: int) -> Int32Array:
        """Let go of the blocks before the window of a token at that position."""
        first = min(first_needed(position, self.need.window_tokens) // self._block_tokens, len(table))
        held = np.flatnonzero(table[:first] != GONE)
        if not held.size:
            return table
        self._release(table, int(held[0]), first, chain)
        table = table.copy()  # a step that is under way may hold the old one
        table[:first] = GONE
        return table

    def reach(self, table: Int32Array, end: int) -> Int32Array:
        """Take blocks up to that position, where they are missing."""
        missing = blocks_for(end, self._block_tokens) - len(table)
        if missing <= 0:
            return table
        self._make_room(missing)
        behind = int(table[-1]) if len(table) and table[-1] != GONE else None
        return np.concatenate((table, self.pool.allocate(missing, behind=behind)))

    def publish(self, table: Int32Array, index: int, node: PrefixNode) -> None:
        """Give known text that has lost its block, or never had one, that of a sequence that has computed it."""
        if node.blocks[self.group] == GONE and index < len(table) and table[index] != GONE:
            self._keep(node, int(table[index]))

    def keep(self, nodes: Iterable[PrefixNode]) -> None:
        """Nodes that have just been added hold their blocks too."""
        self.pool.share(node.blocks[self.group] for node in nodes if node.blocks[self.group] != GONE)

    def release(self, table: Int32Array, chain: Sequence[PrefixNode], tokens: int) -> None:
        """Take back all blocks of a sequence of so many tokens, and its claim."""
        self._release(table, 0, len(table), chain)
        self._claimed -= self.claim(tokens)

    def forget(self, nodes: Iterable[PrefixNode]) -> None:
        """Nodes that are not known any more let go of their blocks."""
        for node in nodes:
            block = node.blocks[self.group]
            if block != GONE:
                self._idle.pop(block, None)
                self.pool.release((block,))

    def reachable(self, chain: Sequence[PrefixNode], held: int, end: int) -> int:
        """How far a chain can be followed: the longest part up to ``end`` whose window's blocks are there.

        Args:
            held: blocks at its start that the sequence holds already, as far as its window reaches; nothing less is found.
        """
        while end > held:
            first = first_needed(end * self._block_tokens, self.need.window_tokens) // self._block_tokens
            gone = [
                index for index in range(max(first, held), end) if chain[index].blocks[self.group] == GONE
            ]
            if not gone:
                return end
            end = gone[0]
        return held

    def _follow(self, table: Int32Array, chain: Sequence[PrefixNode]) -> Int32Array:
        """A table that goes on with the blocks of a chain, as far as its window reaches back from its end."""
        first = first_needed(len(chain) * self._block_tokens, self.need.window_tokens) // self._block_tokens
        known = len(table)
        blocks = [
            GONE if index < first else chain[index].blocks[self.group] for index in range(known, len(chain))
        ]
        taken = [block for block in blocks if block != GONE]
        self.pool.share(taken)
        for block in taken:
            self._idle.pop(block, None)
        return np.concatenate((table, np.array(blocks, dtype=np.int32)))

    def _release(self, table: Int32Array, start: int, end: int, chain: Sequence[PrefixNode]) -> None:
        """Let go of a part of a table. What known text keeps, and nobody else holds, is idle from now on."""
        part = [int(block) for block in table[start:end] if block != GONE]
        self.pool.release(part)
        for index in range(start, min(end, len(chain))):
            node, block = chain[index], int(table[index])
            if (
                block != GONE
                and not node.dropped
                and node.blocks[self.group] == block
                and self.pool.holders(block) == 1
            ):
                self._idle[block] = node

    def _make_room(self, count: int) -> None:
        """Give up blocks of known text, the longest unused first, until so many are free."""
        for block in list(self._idle)[: max(0, count - self.pool.free)]:
            node = self._idle.pop(block)
            node.blocks = _replaced(node.blocks, self.group, GONE)
            self.pool.release((block,))
            self.given_up += 1

    def _keep(self, node: PrefixNode, block: int) -> None:
        node.blocks = _replaced(node.blocks, self.group, block)
        self.pool.share((block,))


def _replaced(blocks: tuple[int, ...], group: int, block: int) -> tuple[int, ...]:
    return (*blocks[:group], block, *blocks[group + 1 :])
