"""The key that guards /v1. Pure ASGI."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import AuthenticationError


class BearerGuard:
    """Ask for ``Authorization: Bearer KEY`` on every path below ``/v1``; everything else is open.

    Args:
        app: what is guarded.
        api_key: the key, or None to guard nothing.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        Raises:
            AuthenticationError: there is no key in the request, or a wrong one.
        """
        if self._key is not None and f"{scope['path']}/".startswith("/v1/"):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, given = bytes(value).partition(b" ")
                if scheme.lower() != b"bearer":
                    given = b""
        assert self._key is not None
        if not hmac.compare_digest(given.strip(), self._key):
            raise AuthenticationError(
                "Incorrect API key provided." if given else "No API key was provided.",
                remedy="Send the server's key in the header 'Authorization: Bearer KEY'.",
            )
