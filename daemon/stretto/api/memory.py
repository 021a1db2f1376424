"""``/v1/memory``: what the caller's own session remembers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api.bodies import read_checked
from stretto.api.caller import caller_of
from stretto.api.query import query_of, whole_number
from stretto.api.replies import send_json
from stretto.errors import NotFound
from stretto.memory import Entry, SessionMemory
from stretto.store import MICROSECONDS

NOTE_SCHEMA = "memory-note-request"
_MOST_ENTRIES = 1000

Whose = Callable[[Scope, Mapping[str, str]], tuple[str, str]]
"""From a call and its query: tenant and session."""


def memory_routes(memory: SessionMemory | None) -> list[BaseRoute]:
    """The routes for callers, who reach their own tenant's sessions and no others. 404 where nothing is remembered."""
    return memory_routes_at("/v1/memory", memory, _own)


def memory_routes_at(
    path: str, memory: SessionMemory | None, whose: Whose, names: Collection[str] = ()
) -> list[BaseRoute]:
    """Routes for one session: list it, add a note, forget an entry, forget all.

    Args:
        path: of the session; an entry is below it.
        whose: finds tenant and session.
        names: query parameters that ``whose`` reads.
    """
    return [
        Route(path, _Session(memory, whose, names), methods=["GET", "POST", "DELETE"]),
        Route(path + "/{entry_id}", _Entry(memory, whose, names), methods=["DELETE"]),
    ]


class _Session:
    """List, add to, or forget a session."""

    def __init__(self, memory: SessionMemory | None, whose: Whose, names: Collection[str]) -> None:
        self._memory = memory
        self._whose = whose
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
        """
        memory = require_memory(self._memory)
        if scope["method"] == "POST":
            tenant, session = self._whose(scope, query_of(scope, *self._names))
            body = await read_checked(scope, receive, NOTE_SCHEMA)
            entry = await memory.add_note(tenant, session, str(body["text"]))
            in_context = await memory.in_context(tenant, session)
            await send_json(send, entry_document(entry, in_context), status=201)
        elif scope["method"] == "DELETE":
            tenant, session = self._whose(scope, query_of(scope, *self._names))
            await send_json(send, {"session": session, "deleted": await memory.forget_all(tenant, session)})
        else:
            query = query_of(scope, *self._names, "after", "limit")
            tenant, session = self._whose(scope, query)
            limit = whole_number(query, "limit", _MOST_ENTRIES, _MOST_ENTRIES)
            await send_json(send, await _page(memory, tenant, session, query.get("after"), limit))


class _Entry:
    """Forget one entry."""

    def __init__(self, memory: SessionMemory | None, whose: Whose, names: Collection[str]) -> None:
        self._memory = memory
        self._whose = whose
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: ``memory_not_found``.
        """
        memory = require_memory(self._memory)
        tenant, session = self._whose(scope, query_of(scope, *self._names))
        entry_id = scope["path_params"]["entry_id"]
        await memory.forget(tenant, session, entry_id)
        await send_json(send, {"id": entry_id, "deleted": True})


async def _page(
    memory: SessionMemory, tenant: str, session: str, after: str | None, limit: int
) -> dict[str, object]:
    found = await memory.page(tenant, session, after=after, limit=limit + 1)
    shown = found[:limit]
    in_context = await memory.in_context(tenant, session)
    return {
        "object": "list",
        "session": session,
        "data": [entry_document(entry, in_context) for entry in shown],
        "has_more": len(found) > limit,
        "last_id": shown[-1].id if shown else None,
    }


def entry_document(entry: Entry, in_context: Collection[str]) -> dict[str, object]:
    """An entry as callers see it; ``in_context`` are the ids of the notes that have room in a prompt."""
    document: dict[str, object] = {
        "id": entry.id,
        "object": "memory",
        "kind": entry.kind,
        "created": entry.created_us // MICROSECONDS,
    }
    if entry.kind == "note":
        return {**document, "text": entry.text, "in_context": entry.id in in_context}
    return {**document, "user": entry.text, "assistant": entry.answer}


def require_memory(memory: SessionMemory | None) -> SessionMemory:
    """The memory.

    Raises:
        NotFound: ``memory_off``: there is none.
    """
    if memory is None:
        raise NotFound(
            "Nothing is remembered here: session memory is off.",
            code="memory_off",
            remedy="Start the daemon with --memory.",
        )
    return memory


def _own(scope: Scope, query: Mapping[str, str]) -> tuple[str, str]:
    caller = caller_of(scope)
    return caller.tenant, caller.session
