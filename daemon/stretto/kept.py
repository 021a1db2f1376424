"""From settings to what is kept between requests: the store, and the rooms in it that are on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.memory import SessionMemory
from stretto.store import FILE_NAME, Store
from stretto.tables import SCHEMAS

if TYPE_CHECKING:
    from stretto.settings import Settings


@dataclass(frozen=True, slots=True)
class Kept:
    """What is on; the store is there when anything is.

    Attributes:
        store: open until the daemon ends.
        memory: session memory.
    """

    store: Store | None = None
    memory: SessionMemory | None = None

    def reports(self) -> dict[str, Callable[[], object]]:
        """Entries for ``/admin/status``."""
        parts = {"store": self.store, "memory": self.memory}
        return {name: part.stats for name, part in parts.items() if part is not None}


@asynccontextmanager
async def open_kept(settings: Settings) -> AsyncIterator[Kept]:
    """Open the store for the length of the block, if a feature needs it. The state directory is there and locked.

    Raises:
        StartupError: see ``Store.open``.
    """
    if not settings.memory:
        yield Kept()
        return
    async with await Store.open(settings.state_dir / FILE_NAME, SCHEMAS) as store:
        memory = SessionMemory(store, top_k=settings.memory_top_k, max_entries=settings.memory_max_entries)
        await memory.purge()
        yield Kept(store, memory)
