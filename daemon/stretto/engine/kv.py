"""The KV memory's blocks: which sequence holds which, and which keep known text for whoever comes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.backends.base import Int32Array, KVPlan
from stretto.engine.blocks import BlockPool
from stretto.engine.budget import WindowNeed, blocks_for
from stretto.engine.live import LiveSequence
from stretto.engine.prefix import Digester, PrefixIndex, PrefixNode, chain_digest, root_digest
from stretto.engine.sequence import CacheMiss
from stretto.engine.windows import WindowBlocks

GROWTH_TOKENS = 64
"""A sequence takes the blocks of its answer in steps of so many tokens, however long that may become."""

ROOM_TOKENS = 1024
"""At least so much room is left behind a new sequence, if that is possible, for its answer and for what follows it."""


_MOST_KNOWN = 8
"""So many times the blocks of a layer group are remembered at most, where all of them have windows."""


@dataclass(frozen=True, slots=True)
class Restorable:
    """A block of a prompt whose KV a store has: its name, and where the sequence wants it, a block number a layer group."""

    digest: bytes
    tokens: bytes
    blocks: tuple[int, ...]


@dataclass(slots=True)
class CacheCounts:
    """What the prefix cache did since the start.

    Attributes:
        hits, misses: prompts of which some, or nothing, was found.
        hit_tokens: prompt tokens that were found and not computed.
        evictions: blocks given up for others, in each layer group without a window.
    """

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    evictions: int = 0


class KVCache:
    """Blocks of all layer groups, and the prefix index over them.

    A sequence is promised all the blocks that its prompt and longest answer may need before it starts, and takes them as it
    needs them: an answer that ends early costs nobody's known text. Blocks that hold its prompt's beginning already are shared,
    read only; the others are its own. Each block that it has filled is published to the index, which holds it too, so that it
    outlives the sequence until its room is needed. A block that is not full is never shared.

    What is promised and not taken is never more than what is free, or held by the index alone.

    A layer group's blocks are counted by its pool, where the index is one more holder. All groups without a window hold the same
    positions; of the others see ``WindowBlocks``.

    Args:
        plan: blocks of each layer group.
        windows: what a sequence holds of each group, or None for a group without a window; empty where none has one.
    """

    def __init__(
        self,
        plan: KVPlan,
        *,
        windows: Sequence[WindowNeed | None] = (),
        prefix_cache: bool = True,
        digester: Digester = chain_digest,
    ) -> None:
        self._plan = plan
        self._needs = tuple(windows) or (None,) * len(plan.blocks)
        self._block_tokens = plan.block_tokens
        self._enabled = prefix_cache
        self._digester = digester
        self._growth = max(1, GROWTH_TOKENS // plan.block_tokens)
        self._room = max(1, ROOM_TOKENS // plan.block_tokens)
        self._pools: dict[int, BlockPool] = {}
        self._windows: tuple[WindowBlocks, ...] = ()
        self._promised = 0
        self._changes = 0  # of what a prompt that waits might find, room or known text
        self._refused: tuple[str, int] | None = None
        self._most_known = _MOST_KNOWN * max(plan.blocks)
        self.counts = CacheCounts()
        self._empty()

    @property
    def blocks_used(self) -> tuple[int, ...]:
        """Blocks that sequences hold, for each layer group."""
        used = {group: pool.used - self._index.evictable for group, pool in self._pools.items()}
        used.update({window.group: window.pool.used - window.idle for window in self._windows})
        return tuple(used[group] for group in range(len(used)))

    @property
    def blocks_cached(self) -> int:
        """Blocks in each layer group without a window that only the index holds: they keep known text, and are as good as free."""
        return self._index.evictable

    @property
    def all_blocks_cached(self) -> int:
        """The same over all layer groups."""
        return len(self._pools) * self._index.evictable + sum(window.idle for window in self._windows)

    @property
    def blocks_evicted(self) -> int:
        """Blocks of known text given up for others, over all layer groups."""
        return len(self._pools) * self.counts.evictions + sum(window.given_up for window in self._windows)

    def start(self, sequence: LiveSequence) -> bool:
        """Give a queued sequence blocks for its prompt, known ones first, and the promise of the others.

        False when there is no room now, and nothing has changed.
        """
        if self._refused == (sequence.id, self._changes):
            return False
        known = self._match(sequence)
        wanted = self._blocks(sequence.reserved_tokens) - len(known)
        room = self._index.evictable - sum(1 for node in known if not node.users) - self._promised
        if any(pool.free + room < wanted for pool in self._pools.values()) or not all(
            window.has_room(sequence.reserved_tokens) for window in self._windows
        ):
            self._refused = (sequence.id, self._changes)
            return False
        for node in known:
            self._index.pin(node)
        sequence.chain = known
        tables: dict[int, Int32Array] = {}
        for group, pool in self._pools.items():
            pool.share(node.blocks[group] for node in known)
            tables[group] = np.fromiter(
                (node.blocks[group] for node in known), dtype=np.int32, count=len(known)
            )
        tables.update({window.group: window.start(sequence) for window in self._windows})
        sequence.block_tables = tuple(tables[group] for group in range(len(tables)))
        self._count_known(sequence, len(known))
        if self._pools:
            self._promised += wanted
            self._take(sequence, min(wanted, self._blocks(len(sequence.prompt)) - len(known) + self._growth))
        return True

    def grow(self, sequence: LiveSequence, tokens: int = 1) -> None:
        """Take promised blocks if the next ``tokens`` need some; they are no more than GROWTH_TOKENS."""
        held = self._held(sequence)
        if self._pools and held < self._blocks(sequence.computed_tokens + tokens):
            count = min(self._growth, self._blocks(sequence.reserved_tokens) - held)
            behind = min(
                pool.free_behind(int(sequence.block_tables[group][-1]), count)
                for group, pool in self._pools.items()
            )
            self._take(sequence, behind or count)

    def prepare(self, sequence: LiveSequence, count: int) -> None:
        """Before a step that computes its next ``count`` tokens: of each window, leave what is behind it, and take what is ahead."""
        start = sequence.computed_tokens
        for window in self._windows:
            table = window.leave_behind(sequence.block_tables[window.group], sequence.chain, start)
            self._set_table(sequence, window.group, window.reach(table, start + count))

    def extend(self, sequence: LiveSequence) -> None:
        """Share what became known of a prompt since it started, as far as the sequence has not begun to compute it itself."""
        if not self.can_follow(sequence):
            return
        found = self._match(sequence)
        if not found:
            return
        for node in found:
            self._index.pin(node)
        known = len(sequence.chain)
        self._exchange(sequence, known, found)
        sequence.chain.extend(found)
        for window in self._windows:
            table = window.extend(sequence.block_tables[window.group], sequence.chain, known)
            self._set_table(sequence, window.group, table)
        self._count_known(sequence, len(found))
        self._changes += 1

    def restorable(self, sequence: LiveSequence, known: Callable[[bytes], bool]) -> list[Restorable]:
        """The blocks that a prompt would compute next, as far as they are known elsewhere."""
        names: list[tuple[bytes, bytes]] = []
        if self.can_follow(sequence) and not sequence.unpublished:
            first = len(sequence.chain)
            # Of a window no more than a step's blocks are held ahead: who asks again is given the next ones.
            most = self._reusable(sequence) if not self._windows else first + self._growth
            for index in range(first, min(most, self._reusable(sequence))):
                digest, tokens = self._name(sequence, index)
                if not known(digest):
                    break
                names.append((digest, tokens))
        if not names:
            return []
        self.prepare(sequence, len(names) * self._block_tokens)
        return [
            Restorable(digest, tokens, tuple(int(table[first + number]) for table in sequence.block_tables))
            for number, (digest, tokens) in enumerate(names)
        ]

    def restored(self, sequence: LiveSequence, count: int) -> None:
        """So many of the prompt's next blocks were put into the sequence's own: they count as found, and are published."""
        tokens = count * self._block_tokens
        sequence.prefilled += tokens
        self.publish(sequence)
        sequence.cached_tokens += tokens
        self.counts.hit_tokens += tokens

    def current_digest(self, sequence: LiveSequence) -> bytes | None:
        """Digest of the prompt's block that the sequence computes next, if others could wait for it to be published."""
        index = len(sequence.chain)
        end = (index + 1) * self._block_tokens
        if (
            sequence.unpublished
            or sequence.prefilled // self._block_tokens != index
            or end > len(sequence.prompt)
        ):
            return None
        return self._name(sequence, index)[0] if self._enabled else None

    def can_follow(self, sequence: LiveSequence) -> bool:
        """Whether the sequence could share its next block if another published it."""
        known = len(sequence.chain)
        return sequence.prefilled == known * self._block_tokens and known < self._reusable(sequence)

    def explain(self, sequence: LiveSequence) -> None:
        """Note why the prompt's next token must be computed; once, when the first of them is about to be."""
        if sequence.explained:
            return
        sequence.explained = True
        if not self._enabled:
            sequence.cache_miss = CacheMiss(0, "disabled")
            return
        if sequence.request.prompt_logprobs is not None:
            sequence.cache_miss = CacheMiss(0, "logprobs")
            return
        if sequence.cached_tokens:
            self.counts.hits += 1
        else:
            self.counts.misses += 1
        index = len(sequence.chain)
        if index < self._reusable(sequence):
            tip = sequence.chain[-1] if sequence.chain else None
            sequence.cache_miss = self._index.explain(
                tip, sequence.request.extra_key, *self._name(sequence, index)
            )

    def publish(self, sequence: LiveSequence) -> None:
        """Tell the index of the blocks that a sequence has filled. Only what was computed without a fault may be published."""
        full = sequence.computed_tokens // self._block_tokens
        if not self._enabled or sequence.unpublished or full <= len(sequence.chain):
            return
        extra_key = sequence.request.extra_key
        known = sequence.cached_tokens // self._block_tokens
        turns = 1 + (sequence.chain[known - 1].turns if known else 0)
        if sequence.request.priority == "background":
            turns = 0  # nobody comes back to a title: it goes first, unless others begin like it
        added: list[PrefixNode] = []
        for index in range(len(sequence.chain), full):
            tip = sequence.chain[-1] if index else None
            digest, tokens = self._name(sequence, index)
            node = self._index.find(tip, extra_key, digest, tokens)
            if node is not None:
                # Another was faster: its block is as good, and nobody else would find this one.
                self._index.pin(node)
                self._exchange(sequence, index, [node])
                for window in self._windows:
                    window.publish(sequence.block_tables[window.group], index, node)
            else:
                blocks = tuple(int(table[index]) for table in sequence.block_tables)
                node = self._index.add(tip, extra_key, digest, tokens, blocks, turns)
                if node is None:
                    sequence.unpublished = True
                    break
                added.append(node)
            sequence.chain.append(node)
        for group, pool in self._pools.items():
            pool.share(node.blocks[group] for node in added)
        for window in self._windows:
            window.keep(added)
        self._forget_some()
        if sequence.unread_tokens:
            self._changes += 1  # a prompt that waits may begin like this one; that it goes on like an answer is not worth a look

    def release(self, sequence: LiveSequence) -> None:
        """Take back the blocks of a sequence that has ended; those that the index holds stay known."""
        self.publish(sequence)
        chain = sequence.chain
        if chain and not sequence.unpublished:
            chain[-1].tail = sequence.token_bytes(len(chain) * self._block_tokens, sequence.computed_tokens)
        for node in reversed(chain):
            self._index.unpin(node)
        self._changes += 1
        if sequence.block_tables:
            if self._pools:
                self._promised -= self._blocks(sequence.reserved_tokens) - self._held(sequence)
            for group, pool in self._pools.items():
                pool.release(sequence.block_tables[group])
            for window in self._windows:
                window.release(sequence.block_tables[window.group], chain, sequence.reserved_tokens)
        sequence.block_tables = ()
        sequence.chain = []

    def distrust(self, sequence: LiveSequence) -> None:
        """Forget all known text that a sequence was computed from, and all that follows it, because the KV may be wrong."""
        if sequence.chain:
            self._let_go(self._index.drop(sequence.chain[0]))
        sequence.unpublished = True

    def clear(self) -> None:
        """Forget everything, whoever holds it: the KV memory is gone, or in an unknown state."""
        self._empty()

    def _empty(self) -> None:
        sizes = list(zip(self._plan.blocks, self._needs, strict=True))
        self._pools = {group: BlockPool(blocks) for group, (blocks, need) in enumerate(sizes) if need is None}
        self._windows = tuple(
            WindowBlocks(group, blocks, need, self._block_tokens)
            for group, (blocks, need) in enumerate(sizes)
            if need is not None
        )
        self._index = PrefixIndex(self._block_tokens, min(self._plan.blocks))
        self._promised = 0
        self._changes = 0
        self._refused = None

    def _take(self, sequence: LiveSequence, count: int) -> None:
        """Add promised blocks to a sequence's tables, behind the last one if those are free."""
        self._promised -= count
        self._evict(count - min(pool.free for pool in self._pools.values()))
        held = self._held(sequence)
        room = max(self._room, self._blocks(sequence.reserved_tokens) - held - count)
        for group, pool in self._pools.items():
            table = sequence.block_tables[group]
            taken = pool.allocate(count, behind=int(table[-1]) if held else None, room=room)
            self._set_table(sequence, group, np.concatenate((table, taken)))

    def _exchange(self, sequence: LiveSequence, first: int, nodes: Sequence[PrefixNode]) -> None:
        """Put known blocks into a sequence's tables, and release its own that were there; not where there is a window."""
        end = first + len(nodes)
        for group, pool in self._pools.items():
            table = sequence.block_tables[group]
            shared = np.fromiter((node.blocks[group] for node in nodes), dtype=np.int32, count=len(nodes))
            pool.share(shared)
            pool.release(table[first:end])
            self._set_table(sequence, group, np.concatenate((table[:first], shared, table[end:])))

    def _held(self, sequence: LiveSequence) -> int:
        """Blocks that a sequence has of each layer group without a window."""
        return next((len(sequence.block_tables[group]) for group in self._pools), 0)

    @staticmethod
    def _set_table(sequence: LiveSequence, group: int, table: Int32Array) -> None:
        tables = sequence.block_tables
        sequence.block_tables = (*tables[:group], table, *tables[group + 1 :])

    def _forget_some(self) -> None:
        """Where all layer groups have windows, known text may outlive all of its blocks: only so much of it is remembered."""
        excess = len(self._index) - self._most_known
        if excess > 0:
            self._evict(min(excess, self._index.evictable))

    def _evict(self, count: int) -> None:
        if count > 0:
            self._let_go(self._index.evict(count))
            self.counts.evictions += count

    def _let_go(self, nodes: Sequence[PrefixNode]) -> None:
        for group, pool in self._pools.items():
            pool.release(node.blocks[group] for node in nodes)
        for window in self._windows:
            window.forget(nodes)

    def _match(self, sequence: LiveSequence) -> list[PrefixNode]:
        """Known blocks that go on where the sequence's chain ends."""
        found: list[PrefixNode] = []
        tip = sequence.chain[-1] if sequence.chain else None
        for index in range(len(sequence.chain), self._reusable(sequence)):
            tip = self._index.find(tip, sequence.request.extra_key, *self._name(sequence, index))
            if tip is None:
                break
            found.append(tip)
        if not self._windows or not found:
            return found
        chain = [*sequence.chain, *found]
        known, end = len(sequence.chain), len(chain)
        while True:  # until all windows can go on from one place
            ends = [window.reachable(chain, known, end) for window in self._windows]
            if min(ends) == end:
                return found[: end - known]
            end = min(ends)

    def _blocks(self, tokens: int) -> int:
        return blocks_for(tokens, self._block_tokens)

    def _reusable(self, sequence: LiveSequence) -> int:
        """How many of the prompt's blocks may be shared: what logits are wanted of is computed, and the last token always is."""
        if not self._enabled or sequence.request.prompt_logprobs is not None:
            return 0
        return (len(sequence.prompt) - 1) // self._block_tokens

    def _count_known(self, sequence: LiveSequence, blocks: int) -> None:
        tokens = blocks * self._block_tokens
        sequence.prefilled += tokens
        sequence.cached_tokens += tokens
        self.counts.hit_tokens += tokens

    def _name(self, sequence: LiveSequence, index: int) -> tuple[bytes, bytes]:
        """Digest and tokens of the sequence's ``index``-th block. Each digest is worked out once, from the first on."""
        size, digests = self._block_tokens, sequence.digests
        while len(digests) < index:
            self._name(sequence, len(digests))
        tokens = sequence.token_bytes(index * size, (index + 1) * size)
        if len(digests) == index:
            digests.append(
                self._digester(digests[-1] if index else root_digest(sequence.request.extra_key), tokens)
            )
        return digests[index], tokens
