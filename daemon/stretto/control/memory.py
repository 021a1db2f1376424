"""``/admin/memory``: every tenant's sessions, for the administrator."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api import memory_routes_at, query_of, require_memory, send_json
from stretto.conversation import DEFAULT_SESSION
from stretto.memory import SessionMemory
from stretto.store import MICROSECONDS


def memory_admin_routes(memory: SessionMemory | None) -> list[BaseRoute]:
    """The list of sessions, and one session named by ``?session=`` and ``?tenant=``."""
    return [
        Route("/admin/memory/sessions", _Sessions(memory), methods=["GET"]),
        *memory_routes_at("/admin/memory", memory, _named, ("tenant", "session")),
    ]


class _Sessions:
    """List the sessions."""

    def __init__(self, memory: SessionMemory | None) -> None:
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        query_of(scope)
        sessions = await require_memory(self._memory).sessions()
        data = [
            {
                "tenant": each.tenant,
                "session": each.session,
                "notes": each.notes,
                "exchanges": each.exchanges,
                "created": each.created_us // MICROSECONDS,
            }
            for each in sessions
        ]
        await send_json(send, {"object": "list", "data": data})


def _named(scope: Scope, query: Mapping[str, str]) -> tuple[str, str]:
    return query.get("tenant", ""), query.get("session") or DEFAULT_SESSION
