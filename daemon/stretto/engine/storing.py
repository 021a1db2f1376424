"""Known text that outlives the KV memory: what the engine asks of a store, and when it saves and restores.

A block is saved once, after the turn that made it, a few at a time and mostly while nothing else is to do. It is restored when a
prompt that begins with it has been given its blocks: reading it back takes a small part of the time of computing it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from stretto.backends.base import Backend, BackendFailure, BackendLost
from stretto.engine.kv import KVCache, Restorable
from stretto.engine.live import LiveSequence
from stretto.engine.prefix import PrefixNode

_log = logging.getLogger(__name__)

SAVED_A_STEP = 4
"""Blocks saved after a step that computed; without work to do, so many at a time until all are."""

LEAST_SAVED_BLOCKS = 4
"""A chain of fewer blocks is computed again as fast as it is read."""


class PrefixStore(Protocol):
    """Blocks by the digest of their chain (see ``chain_digest``). All of it is called on the engine thread, and none of it raises."""

    def known(self, digest: bytes) -> bool:
        """Whether the block is there; no I/O."""
        ...

    def read(self, digest: bytes, tokens: bytes) -> tuple[bytes, ...] | None:
        """What was saved: KV by layer group; None when it is not there any more, broken, or of other tokens."""
        ...

    def used(self, digests: Sequence[bytes]) -> None:
        """Blocks of one chain, from its start, were read: they are the last to be given up."""
        ...

    def room(self) -> bool:
        """Whether ``save`` would take a block now."""
        ...

    def save(self, digest: bytes, depth: int, tokens: bytes, blocks: tuple[bytes, ...]) -> bool:
        """Take a block, to be written soon. False when too much waits to be written."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def stats(self) -> dict[str, object]:
        """Counts, for ``status``. From any thread."""
        ...

    def close(self) -> None:
        """Write what waits, and end. Idempotent."""
        ...


class Storing:
    """Moves blocks between the KV memory and a store. Belongs to the engine thread.

    Args:
        backend: reads and writes its blocks.
        store: where they go.
        clock: monotonic seconds.
    """

    def __init__(self, backend: Backend, store: PrefixStore, *, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._store = store
        self._clock = clock
        self._unsaved: dict[bytes, PrefixNode] = {}
        self.restored_tokens = 0

    @property
    def pending(self) -> int:
        """Blocks that are to be saved."""
        return len(self._unsaved)

    def note(self, sequence: LiveSequence) -> None:
        """Remember to save what a sequence has made known, and that it was of use."""
        if len(sequence.chain) < LEAST_SAVED_BLOCKS:
            return
        known: list[bytes] = []
        for node in sequence.chain:
            if self._store.known(node.digest):
                known.append(node.digest)
            elif not node.dropped:
                self._unsaved.setdefault(node.digest, node)
        self._store.used(known)

    def save_some(self) -> int:
        """Save a few blocks; returns how many. Whatever was evicted before its turn came is left out."""
        saved = 0
        while self._unsaved and saved < SAVED_A_STEP and self._store.room():
            digest = next(iter(self._unsaved))
            node = self._unsaved.pop(digest)
            # A window may have given up its block since: then the text can only be computed again.
            if node.dropped or min(node.blocks) < 0 or self._store.known(digest):
                continue
            data = tuple(self._backend.read_block(group, block) for group, block in enumerate(node.blocks))
            self._store.save(digest, node.depth, node.tokens, data)
            saved += 1
        return saved

    def wanted(self, kv: KVCache, sequence: LiveSequence) -> list[Restorable]:
        """The blocks that a sequence would compute next and the store has."""
        return kv.restorable(sequence, self._store.known)

    def restore(self, blocks: Sequence[Restorable], until: float) -> int:
        """Put blocks into the KV memory, in order, until that time; at least one. Returns how many are there now.

        Raises:
            BackendLost: the backend must be loaded again.
        """
        done: list[bytes] = []
        for block in blocks:
            data = self._store.read(block.digest, block.tokens)
            if data is None or len(data) != len(block.blocks):
                break
            try:
                for group, (number, part) in enumerate(zip(block.blocks, data, strict=True)):
                    self._backend.write_block(group, number, part)
            except BackendLost:
                raise
            except BackendFailure as failure:
                _log.warning("a saved block could not be put back: %s", failure)
                break
            done.append(block.digest)
            if self._clock() >= until:
                break
        self._store.used(done)
        return len(done)

    def forget(self) -> None:
        """The KV memory is gone."""
        self._unsaved.clear()

    def distrust(self) -> None:
        """Some KV was wrong, and what was computed from it may have been saved: nothing that was saved is to be believed."""
        self._unsaved.clear()
        self._store.clear()

    def stats(self) -> dict[str, object]:
        """The store's counts, and ours."""
        return {
            **self._store.stats(),
            "restored_tokens_total": self.restored_tokens,
            "pending_blocks": self.pending,
        }

    def close(self) -> None:
        """Save what is left, as far as the store takes it at once, and close it."""
        while self._unsaved and self.save_some():
            pass
        self._store.close()
