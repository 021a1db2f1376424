"""``/v1/cache``: what was answered to the caller before."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.query import query_of
from stretto.api.replies import send_json
from stretto.cache import AnswerCache
from stretto.errors import NotFound


def cache_routes(cache: AnswerCache | None) -> list[BaseRoute]:
    """The route for callers, who reach their own tenant's answers and no others. 404 where nothing is kept."""
    return [Route("/v1/cache", _Forget(cache), methods=["DELETE"])]


class _Forget:
    """Forget what was answered to the caller."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: ``cache_off``.
            StoreError: the storage is at fault.
        """
        query_of(scope)
        deleted = await require_cache(self._cache).forget(caller_of(scope).tenant)
        await send_json(send, {"deleted": deleted})


def require_cache(cache: AnswerCache | None) -> AnswerCache:
    """The cache.

    Raises:
        NotFound: ``cache_off``: there is none.
    """
    if cache is None:
        raise NotFound(
            "No answers are kept here: the answer cache is off.",
            code="cache_off",
            remedy="Start the daemon with --semantic-cache on.",
        )
    return cache
