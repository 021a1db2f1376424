"""From settings to what is kept between requests: the store, and the rooms in it that are on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.errors import EngineError, StoreError

if TYPE_CHECKING:
    from stretto.embedding import Embedder
    from stretto.ledger import Ledger, Provider
    from stretto.memory import Meaning, SessionMemory
    from stretto.memory.meaning import Float32Array
    from stretto.settings import Settings
    from stretto.store import Store


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is on; the store is there when anything is.

    Attributes:
        store: open until the daemon ends.
        memory: session memory.
        ledger: prepaid credits.
    """

    store: Store | None = None
    memory: SessionMemory | None = None
    ledger: Ledger | None = None

    def reports(self) -> dict[str, Callable[[], object]]:
        """Entries for ``/admin/status``."""
        parts = {"store": self.store, "memory": self.memory, "credits": self.ledger}
        return {name: part.stats for name, part in parts.items() if part is not None}


def meaning_of(embedder: Embedder) -> Meaning:
    """What session memory finds exchanges by; a text that cannot be embedded has none."""
    from stretto.memory import Meaning

    async def embed(text: str) -> Float32Array | None:
        try:
            vector: Float32Array = (await embedder.embed([text], truncate=True)).vectors[0]
            return vector
        except EngineError as error:
            _log.warning("a text of session memory has no vector (%s)", error.code)
            return None

    return Meaning(int(embedder.fingerprint[:15], 16), embed)


@asynccontextmanager
async def open_kept(
    settings: Settings, provider: Provider | None, model: Sequence[str], embedder: Embedder | None
) -> AsyncIterator[Kept]:
    """Open the store for the length of the block, if a feature needs it. The state directory is there and locked.

    Args:
        settings: which features are on.
        provider: prices and keys, if requests are billed.
        model: the names of the model that is served.
        embedder: for what is found by its meaning.

    Raises:
        StartupError: see ``Store.open`` and ``Ledger.open``.
        SettingsError: the provider file has no prices for the model.
        StoreError: the storage is at fault.
    """
    offer = None if provider is None else provider.offer_of(model)
    if not settings.memory and offer is None and settings.semantic_cache == "off":
        yield Kept()
        return
    # Only who keeps something pays for importing what keeps it.
    from stretto.ledger import Ledger
    from stretto.memory import SessionMemory
    from stretto.store import FILE_NAME, Store
    from stretto.tables import SCHEMAS

    async with await Store.open(settings.state_dir / FILE_NAME, SCHEMAS) as store:
        memory = ledger = None
        if settings.memory:
            memory = SessionMemory(
                store,
                top_k=settings.memory_top_k,
                max_entries=settings.memory_max_entries,
                meaning=None
                if embedder is None or settings.memory_recall == "words"
                else meaning_of(embedder),
            )
            try:
                await memory.purge()
            except StoreError as error:
                _log.warning("what was forgotten is out of reach, and not deleted yet (%s)", error.code)
        if provider is not None and offer is not None:
            ledger = await Ledger.open(store, provider, offer)
        yield Kept(store, memory, ledger)
