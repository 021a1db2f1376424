"""Versions of Anthropic's API. Pure ASGI."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api.caller import field_of
from stretto.errors import InvalidRequest

KNOWN_VERSIONS = ("2023-06-01", "2026-10-21")
"""The later one refuses sampling parameters; here they are taken in both, since local models want them."""


class AnthropicVersion:
    """Refuse a version of the API that is not known here. Without the header, the request is taken as it is.

    Args:
        app: what is guarded.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        Raises:
            InvalidRequest: code ``invalid_header``.
        """
        version = field_of(scope, b"anthropic-version")
        if version is not None and version not in KNOWN_VERSIONS:
            raise InvalidRequest(
                f"The header 'anthropic-version' is {version[:60]!r}; it must be one of {', '.join(KNOWN_VERSIONS)}.",
                code="invalid_header",
                param="anthropic-version",
            )
        await self._app(scope, receive, send)
