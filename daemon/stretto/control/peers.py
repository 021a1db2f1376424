"""Who may use the control plane: the daemon's own user and root. Pure ASGI."""

from __future__ import annotations

import os
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import Forbidden
from stretto.serving import Peer


class PeerGuard:
    """Refuse requests whose sender, as the kernel tells, is not one of ``uids``.

    The socket's mode already keeps others out; this holds when a service manager made the socket, or somebody loosened it.

    Args:
        app: what is guarded.
        uids: user ids that may pass; by default our own and root.
    """

    def __init__(self, app: ASGIApp, *, uids: Collection[int] | None = None) -> None:
        self._app = app
        self._uids = frozenset((os.geteuid(), 0) if uids is None else uids)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on.

        Raises:
            Forbidden: another user's process, or a connection that has no known peer.
        """
        peer = scope.get("state", {}).get("peer")
        if not isinstance(peer, Peer):
            raise Forbidden("The control plane answers on its Unix socket only.")
        if peer.uid not in self._uids:
            raise Forbidden(f"User {peer.uid} may not use the control plane of this daemon.")
        await self._app(scope, receive, send)
