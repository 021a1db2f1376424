"""Which text the KV memory holds: an index over full blocks, shared by all conversations. Pure: no backend, no clock.

A block is known by a digest of its tokens and of all blocks before it. A digest only finds a block; the tokens decide, so two
texts with one digest cost a miss and never a wrong answer. A block that a sequence uses is never evicted, and neither is one
whose text goes on in another block.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from stretto.engine.sequence import CacheMiss

DIGEST_BYTES = 16

MOST_WORTH = 8
"""A chain counts at most as if so many requests had been built on it."""

_MOST_COMPARED = 32
_TOKEN_BYTES = 4

Digester = Callable[[bytes, bytes], bytes]


def chain_digest(parent: bytes, tokens: bytes) -> bytes:
    """Digest of a block from its parent's digest and its own token ids (int32). Stable over processes and machines."""
    return blake2b(parent + tokens, digest_size=DIGEST_BYTES).digest()


def root_digest(extra_key: bytes) -> bytes:
    """What stands for the parent of a first block: everything besides the tokens that changes the KV."""
    return blake2b(extra_key, digest_size=DIGEST_BYTES, person=b"stretto-prefix").digest()


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A full block of known text.

    Attributes:
        digest: see ``chain_digest``.
        parent: the block before it; a root for the first one.
        tokens: its token ids, int32 as bytes.
        blocks: where its KV is: a block number a layer group; -1 where a window has left it behind and its room was needed.
        depth: blocks of the chain up to and with it; 0 for a root.
        turns: how many requests, each going on where one before it had ended, made the chain; 0 if the last of them was background work.
        children: what is known to follow, by digest.
        users: sequences that hold it.
        reuses: sequences that found it.
        used_at: the index's count of evictions when it was last used.
        tail: tokens that last followed it without filling a block; their KV is not kept.
        dropped: it is not in the index any more; those who hold it may go on with it.
    """

    digest: bytes
    parent: PrefixNode | None
    tokens: bytes
    blocks: tuple[int, ...]
    depth: int
    turns: int
    children: dict[bytes, PrefixNode] = field(default_factory=dict)
    users: int = 1
    reuses: int = 0
    used_at: int = 0
    tail: bytes = b""
    dropped: bool = False

    @property
    def priority(self) -> int:
        """What is lost with it: the lowest goes first.

        The chain's length, which its rebuilding costs, times how often it proved useful, ages with every block that others
        need. So it outlives as many evictions of others as it has blocks, and a continued one several times as many.
        """
        return self.used_at + self.depth * min(MOST_WORTH, self.turns + self.reuses)


class PrefixIndex:
    """Finds, adds and gives up blocks. It counts users; the blocks themselves are the caller's to hold and release.

    Memory is bounded by the number of nodes, which is the caller's number of blocks, and ``most_remembered`` digests of
    evicted ones.
    """

    def __init__(self, block_tokens: int, most_remembered: int) -> None:
        self._block_tokens = block_tokens
        self._most_remembered = most_remembered
        self._nodes: dict[bytes, PrefixNode] = {}
        self._roots: dict[bytes, PrefixNode] = {}
        self._leaves: dict[PrefixNode, None] = {}  # those that may be evicted at once
        self._evicted: dict[bytes, None] = {}
        self._unused = 0
        self.evictions = 0
        """Blocks evicted so far."""

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def evictable(self) -> int:
        """Blocks that nobody uses. Who uses a block uses all before it, so all of these can be evicted, one after the other."""
        return self._unused

    def find(
        self, parent: PrefixNode | None, extra_key: bytes, digest: bytes, tokens: bytes
    ) -> PrefixNode | None:
        """The block of these tokens after ``parent`` (None: at the start), verified."""
        node = self._nodes.get(digest)
        if node is None or node.tokens != tokens:
            return None
        before = self._roots.get(extra_key) if parent is None else parent
        return node if node.parent is before else None

    def add(
        self,
        parent: PrefixNode | None,
        extra_key: bytes,
        digest: bytes,
        tokens: bytes,
        blocks: tuple[int, ...],
        turns: int,
    ) -> PrefixNode | None:
        """A new node with one user, or None when it cannot be added: its digest is taken, or its parent was dropped."""
        if digest in self._nodes or (parent is not None and parent.dropped):
            return None
        if parent is None:
            parent = self._roots.get(extra_key)
            if parent is None:
                parent = self._roots[extra_key] = PrefixNode(
                    root_digest(extra_key), None, extra_key, (), 0, 0
                )
        node = PrefixNode(digest, parent, tokens, blocks, parent.depth + 1, turns, used_at=self.evictions)
        self._nodes[digest] = parent.children[digest] = node
        self._evicted.pop(digest, None)
        return node

    def pin(self, node: PrefixNode) -> None:
        """One more uses it, and found it here."""
        if not node.users and not node.dropped:
            self._unused -= 1
            self._leaves.pop(node, None)
        node.users += 1
        node.reuses += 1

    def unpin(self, node: PrefixNode) -> None:
        """One who used it is done. A chain is unpinned from its end."""
        node.users -= 1
        if node.dropped:
            return
        node.used_at = self.evictions
        if not node.users:
            self._unused += 1
            if not node.children:
                self._leaves[node] = None

    def evict(self, count: int) -> list[PrefixNode]:
        """Give up so many unused blocks, cheapest first, each before the one it follows.

        Raises:
            ValueError: so many are not unused.
        """
        if count > self._unused:
            raise ValueError(f"{count} blocks shall be evicted, {self._unused} are unused")
        order = itertools.count()
        heap = [(node.priority, next(order), node) for node in self._leaves]
        heapq.heapify(heap)
        evicted: list[PrefixNode] = []
        while len(evicted) < count:
            node = heapq.heappop(heap)[2]
            parent = self._remove(node)
            if parent in self._leaves:
                heapq.heappush(heap, (parent.priority, next(order), parent))
            evicted.append(node)
        self.evictions += count
        return evicted

    def drop(self, node: PrefixNode) -> list[PrefixNode]:
        """Forget a block and all that follow it, used or not; returns them."""
        if node.dropped:
            return []
        subtree = [node]
        for known in subtree:
            subtree.extend(known.children.values())
        for known in reversed(subtree):
            self._remove(known)
        return subtree

    def explain(
        self, parent: PrefixNode | None, extra_key: bytes, digest: bytes, tokens: bytes
    ) -> CacheMiss | None:
        """Why the block of these tokens is not found after ``parent``: see ``CacheMiss``."""
        before = self._roots.get(extra_key) if parent is None else parent
        position = 0 if parent is None else parent.depth * self._block_tokens
        if digest in self._evicted or (parent is not None and parent.dropped):
            return CacheMiss(position, "evicted")
        if before is None:
            return CacheMiss(position, "cold")
        latest = itertools.islice(reversed(before.children.values()), _MOST_COMPARED)
        shared = max((_common_tokens(child.tokens, tokens) for child in latest), default=-1)
        tail = _common_tokens(before.tail, tokens)
        if before.tail and tail >= shared and tail * _TOKEN_BYTES == len(before.tail):
            return CacheMiss(position + tail, "partial_block")
        shared = max(shared, tail if before.tail else -1)
        if shared < 0:
            return None  # known text ended exactly here, and all of it was found
        return (
            CacheMiss(position, "cold") if not position + shared else CacheMiss(position + shared, "diverged")
        )

    def _remove(self, node: PrefixNode) -> PrefixNode:
        """Take out a node without children; returns its parent."""
        parent = node.parent
        assert parent is not None
        del self._nodes[node.digest]
        del parent.children[node.digest]
        node.dropped = True
        if not node.users:
            self._unused -= 1
            self._leaves.pop(node, None)
        if len(self._evicted) >= self._most_remembered:
            self._evicted.pop(next(iter(self._evicted)), None)
        self._evicted[node.digest] = None
        if not parent.children:
            if parent.parent is None:
                del self._roots[parent.tokens]
            elif not parent.users:
                self._leaves[parent] = None
        return parent


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two texts share from their start."""
    most = min(len(one), len(other)) // _TOKEN_BYTES
    low, high = 0, most
    while low < high:  # bytes are compared at the speed of memory, tokens one by one are not
        middle = (low + high + 1) // 2
        if one[: middle * _TOKEN_BYTES] == other[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
