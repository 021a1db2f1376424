"""``/admin/cache``: every tenant's answers, for the administrator."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api import query_of, require_cache, send_json, whole_number
from stretto.cache import AnswerCache, Entry
from stretto.errors import NotFound
from stretto.store import MICROSECONDS

_MOST_ENTRIES = 1000
_ENTRIES = 100


def cache_admin_routes(cache: AnswerCache | None) -> list[BaseRoute]:
    """Figures and forgetting, the list of entries, and one entry."""
    return [
        Route("/admin/cache", _Cache(cache), methods=["GET", "DELETE"]),
        Route("/admin/cache/entries", _Entries(cache), methods=["GET"]),
        Route("/admin/cache/entries/{entry_id}", _Entry(cache), methods=["GET"]),
    ]


class _Cache:
    """Figures; forget all, or one tenant's."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        cache = require_cache(self._cache)
        if scope["method"] != "DELETE":
            query_of(scope)
            await send_json(send, cache.stats())
            return
        tenant = query_of(scope, "tenant").get("tenant")
        deleted = await (cache.clear() if tenant is None else cache.forget(tenant))
        await send_json(send, {"deleted": deleted})


class _Entries:
    """Entries, newest first; a page of them."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            InvalidRequest: ``invalid_value``.
        """
        cache = require_cache(self._cache)
        query = query_of(scope, "tenant", "before", "limit")
        limit = whole_number(query, "limit", _ENTRIES, _MOST_ENTRIES)
        before = whole_number(query, "before", 0, 2**63 - 1) or None
        found = await cache.page(before=before, limit=limit + 1, tenant=query.get("tenant"))
        shown = found[:limit]
        document = {
            "object": "list",
            "data": [_document(entry, hits) for entry, hits in shown],
            "has_more": len(found) > limit,
            "last_id": shown[-1][0].id if shown else None,
        }
        await send_json(send, document)


class _Entry:
    """One entry, with its answer."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: ``cache_entry_not_found``.
        """
        cache = require_cache(self._cache)
        query_of(scope)
        name = scope["path_params"]["entry_id"]
        entry, hits = await cache.entry(_number(name))
        await send_json(send, {**_document(entry, hits), "answer": entry.answer.text})


def _number(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 19):
        raise NotFound(
            f"The cache has no entry '{name[:60]}'.",
            code="cache_entry_not_found",
            remedy="GET /admin/cache/entries lists those it has.",
        )
    return int(name)


def _document(entry: Entry, hits: int) -> dict[str, object]:
    return {
        "id": entry.id,
        "object": "cache.entry",
        "tenant": entry.tenant,
        "session": entry.session,
        "created": entry.created_us // MICROSECONDS,
        "question": entry.question,
        "semantic": entry.semantic,
        "hits": hits,
        "prompt_tokens": entry.answer.prompt_tokens,
        "completion_tokens": entry.answer.completion_tokens,
    }
