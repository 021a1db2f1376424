"""A prefix store that is gone with the test."""

from __future__ import annotations

from collections.abc import Sequence


class MemoryStore:
    """A store in memory. Each read takes some time of the bench's clock."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, tuple[int, bytes, tuple[bytes, ...]]] = {}
        self.uses: list[list[bytes]] = []
        self.reads = 0
        self.full = False
        self.closed = False
        self.on_read = lambda: None

    def known(self, digest: bytes) -> bool:
        return digest in self.blocks

    def read(self, digest: bytes, tokens: bytes) -> tuple[bytes, ...] | None:
        self.on_read()
        self.reads += 1
        found = self.blocks.get(digest)
        return found[2] if found is not None and found[1] == tokens else None

    def used(self, digests: Sequence[bytes]) -> None:
        self.uses.append(list(digests))

    def room(self) -> bool:
        return not self.full

    def save(self, digest: bytes, depth: int, tokens: bytes, blocks: tuple[bytes, ...]) -> bool:
        self.blocks[digest] = depth, tokens, blocks
        return True

    def clear(self) -> None:
        self.blocks.clear()

    def stats(self) -> dict[str, object]:
        return {"blocks": len(self.blocks)}

    def close(self) -> None:
        self.closed = True
