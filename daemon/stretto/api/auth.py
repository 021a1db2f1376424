"""The key that guards what is asked of the model, in either header that clients put it into. Pure ASGI."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import AuthenticationError

GUARDED = ("/v1/", "/tokenize/", "/detokenize/")
"""What the beginnings of paths are that a key is asked for."""


class BearerGuard:
    """Ask for ``Authorization: Bearer KEY`` or ``x-api-key: KEY`` on every path below ``/v1`` and those of tokens; everything else, which
    is health, is open.

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
        if self._key is not None and f"{scope['path']}/".startswith(GUARDED):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        assert self._key is not None
        given = given_key(scope)
        if not hmac.compare_digest(given, self._key):
            raise AuthenticationError(
                "Incorrect API key provided." if given else "No API key was provided.",
                remedy="Send the server's key in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            )


def given_key(scope: Scope) -> bytes:
    """The key that a request brings, or nothing. Of two, the one in ``x-api-key`` counts."""
    bearer = own = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = bytes(value).partition(b" ")
            bearer = key.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            own = bytes(value).strip()
    return own or bearer
