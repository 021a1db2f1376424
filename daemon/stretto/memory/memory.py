"""Session memory as the event loop (trio) sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

from stretto.errors import InvalidRequest, NotFound
from stretto.memory import entries
from stretto.memory.entry import NOTE_CHARS, TURN_CHARS, Entry, SessionCount, key_of, storable
from stretto.memory.meaning import Meaning, Vector, alternate, nearest
from stretto.memory.recollection import Recollection, fitting_notes, recollect
from stretto.memory.search import search
from stretto.store import Store


class SessionMemory:
    """Notes and exchanges by tenant and session, in the store. A session begins when something is put into it.

    Every method raises StoreError when the storage is at fault.

    Args:
        store: open, with this room's tables.
        top_k: most exchanges that are recalled at once.
        max_entries: most entries of a session; the oldest exchanges make room, notes never do.
        meaning: recalls exchanges also by what was asked in other words; None recalls by words alone.
    """

    def __init__(self, store: Store, *, top_k: int, max_entries: int, meaning: Meaning | None = None) -> None:
        self.top_k = top_k
        self.max_entries = max_entries
        self._store = store
        self._meaning = meaning
        self.on_change: Callable[[str, str], Awaitable[None]] | None = None
        """Awaited with tenant and session once a note was pinned or anything forgotten: what was made with them is out of date."""
        self._counts = {"recalls": 0, "recalled_entries": 0, "recorded": 0}

    async def recall(
        self, tenant: str, session: str, asked: str, present: Collection[str] = ()
    ) -> Recollection | None:
        """What a session has to say to a message; None when nothing.

        Args:
            asked: the new user message.
            present: earlier user messages of the conversation: their exchanges are not recalled.
        """
        shown = frozenset(storable(text)[:TURN_CHARS] for text in present)
        vector = await self._vector(asked) if self.top_k else None
        found = await self._store.read(
            partial(
                _recall,
                tenant=tenant,
                session=session,
                asked=asked,
                vector=vector,
                present=shown,
                top_k=self.top_k,
            )
        )
        self._counts["recalls"] += 1
        if found is not None:
            self._counts["recalled_entries"] += len(found.notes) + len(found.exchanges)
        return found

    async def record(self, tenant: str, session: str, said: str, answered: str) -> bool:
        """Remember an exchange, each side cut to ``TURN_CHARS``.

        Returns:
            False when it was not: notes alone fill the session, or it is the very exchange that was remembered last.
        """
        vector = await self._vector(said)
        kept = await self._store.write(
            lambda connection: entries.add_exchange(
                connection, tenant, session, said, answered, self.max_entries, vector
            )
        )
        self._counts["recorded"] += kept
        return kept

    async def _vector(self, text: str) -> Vector | None:
        text = storable(text)[:TURN_CHARS]
        if self._meaning is None or not text.strip():
            return None
        values = await self._meaning.embed(text)
        return None if values is None or not values.any() else Vector(self._meaning.model, values)

    async def add_note(self, tenant: str, session: str, text: str) -> Entry:
        """Pin a note. It is on the medium when this returns.

        Raises:
            InvalidRequest: ``invalid_value``: it is blank or longer than ``NOTE_CHARS``; ``memory_full``: the session holds as many notes
                as it may hold entries.
        """
        if not text.strip():
            raise InvalidRequest("'text' is blank; a note must say something.", param="text")
        if len(text) > NOTE_CHARS:
            raise InvalidRequest(
                f"'text' has {len(text)} characters; a note has at most {NOTE_CHARS}.", param="text"
            )
        try:
            entry = await self._store.write(
                lambda connection: entries.add_note(connection, tenant, session, text, self.max_entries),
                durable=True,
            )
        except entries.NoRoom:
            raise InvalidRequest(
                f"The session is full: it holds {self.max_entries} notes (--memory-max-entries).",
                code="memory_full",
                remedy="Delete notes that are not needed any more.",
            ) from None
        await self._changed(tenant, session)
        return entry

    async def page(
        self, tenant: str, session: str, *, after: str | None = None, limit: int = 1000
    ) -> list[Entry]:
        """Entries of a session, oldest first; at most ``limit``, after the entry whose id is ``after``.

        Raises:
            NotFound: ``memory_not_found``: the session has no entry ``after``.
        """
        key = None if after is None else _key(after)
        found = await self._store.read(
            lambda connection: entries.page(connection, tenant, session, key, limit)
        )
        if found is None:
            raise _unknown(after or "")
        return found

    async def in_context(self, tenant: str, session: str) -> frozenset[str]:
        """Ids of the notes that have room in a prompt. All have, unless they are long and many: the newest go first."""
        return await self._store.read(partial(_in_context, tenant=tenant, session=session))

    async def forget(self, tenant: str, session: str, entry_id: str) -> None:
        """Delete an entry.

        Raises:
            NotFound: ``memory_not_found``: the session has none of that id, whoever else may.
        """
        key = _key(entry_id)
        if not await self._store.write(
            lambda connection: entries.forget(connection, tenant, session, key), durable=True
        ):
            raise _unknown(entry_id)
        await self._changed(tenant, session)

    async def forget_all(self, tenant: str, session: str) -> int:
        """Delete a session; returns how many entries it had. From the first moment on nothing of it is recalled."""
        count = await self._store.write(
            lambda connection: entries.detach(connection, tenant, session), durable=True
        )
        await self._changed(tenant, session)
        await self.purge()
        return count

    async def purge(self) -> None:
        """Delete what is left of sessions that were forgotten; for the start, when a process died in the middle."""
        while await self._store.write(entries.purge):
            pass

    async def _changed(self, tenant: str, session: str) -> None:
        if self.on_change is not None:
            await self.on_change(tenant, session)

    async def sessions(self) -> Sequence[SessionCount]:
        """Every session of every tenant; for the administrator alone."""
        return await self._store.read(entries.sessions)

    def stats(self) -> dict[str, object]:
        """Limits and counts since the start; plain JSON values."""
        by = "words" if self._meaning is None else "words and meaning"
        return {"top_k": self.top_k, "max_entries": self.max_entries, "recalls_by": by, **self._counts}


def _recall(
    connection: sqlite3.Connection,
    *,
    tenant: str,
    session: str,
    asked: str,
    vector: Vector | None,
    present: Collection[str],
    top_k: int,
) -> Recollection | None:
    number = entries.session_number(connection, tenant, session)
    if number is None:
        return None
    found = search(connection, number, storable(asked), present, top_k)
    if vector is not None:
        found = alternate((nearest(connection, number, vector, present, top_k), found), top_k)
    return recollect(entries.notes(connection, number), found)


def _in_context(connection: sqlite3.Connection, *, tenant: str, session: str) -> frozenset[str]:
    number = entries.session_number(connection, tenant, session)
    if number is None:
        return frozenset()
    return frozenset(note.id for note in fitting_notes(entries.notes(connection, number)))


def _key(entry_id: str) -> int:
    key = key_of(entry_id)
    if key is None:
        raise _unknown(entry_id)
    return key


def _unknown(entry_id: str) -> NotFound:
    return NotFound(
        f"This session has no memory '{entry_id[:60]}'.",
        code="memory_not_found",
        remedy="GET /v1/memory lists those it has.",
    )
