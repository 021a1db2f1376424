"""A bound method as a route's endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send


class Endpoint:
    """A bound method as an ASGI application: Starlette would take a plain one for a request-response function."""

    def __init__(self, call: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await self._call(scope, receive, send)
