"""Who asks, by a key of the credit ledger. Pure ASGI."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api.auth import GUARDED, given_key
from stretto.errors import AuthenticationError
from stretto.ledger import Ledger

_ADMIN = "/admin/credits/"


class KeyGuard:
    """Ask for a key below ``/v1`` and for tokens, and for the admin token below ``/admin/credits``; everything else is open.

    The name of the key goes into the scope's state as ``tenant``; the key itself goes nowhere.

    Args:
        app: what is guarded.
        ledger: knows the keys and the token.
        trusted: whether callers are the daemon's owner anyway, as on the Unix socket: then a request without a key is the owner's, and
            no admin token is asked for.
    """

    def __init__(self, app: ASGIApp, ledger: Ledger, *, trusted: bool = False) -> None:
        self._app = app
        self._ledger = ledger
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        Raises:
            AuthenticationError: there is no key or token in the request, or a wrong one.
        """
        path = f"{scope['path']}/"
        if path.startswith(GUARDED):
            given = given_key(scope)
            if given or not self._trusted:
                scope["state"]["tenant"] = self._ledger.authenticate(given).name
        elif path.startswith(_ADMIN) and not self._trusted:
            given = given_key(scope)
            if not self._ledger.is_admin(given):
                raise AuthenticationError(
                    "Incorrect admin token provided." if given else "No admin token was provided.",
                    code="invalid_admin_token",
                    remedy="Send the admin_token of the provider file in the header 'Authorization: Bearer TOKEN'.",
                )
        await self._app(scope, receive, send)
