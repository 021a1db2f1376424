"""Who a browser may speak for: the Host allow-list against DNS rebinding, and cross-origin grants. Pure ASGI.

A page of any site can make its visitor's browser send requests to 127.0.0.1. By DNS rebinding it can even read the replies, under
its own host name: so a request must name us by a name that is ours. Without rebinding it cannot read replies unless we grant it
by CORS headers: so none are sent, except to origins named in the settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.serving.replies import Header, Refusal, RefusalBody, plain_body, send_refusal

_OWN_NAMES = ("127.0.0.1", "localhost", "::1")
_PREFLIGHT_MAX_AGE_S = 600
# https://fetch.spec.whatwg.org/#cors-safelisted-response-header-name
_SHOWN_ANYWAY = frozenset(
    (
        b"cache-control",
        b"content-language",
        b"content-length",
        b"content-type",
        b"expires",
        b"last-modified",
        b"pragma",
    )
)


class HostGuard:
    """Refuse, with 403, requests whose Host is not one of our names.

    Args:
        app: what is guarded, all its routes.
        bound_host: the address listened on. When that is every address (``0.0.0.0``, ``::``), any Host that is an IP address is
            taken too: rebinding needs a name.
        names: further names that reach us. Ports do not matter.
        refusal_body: how the refusal is written.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound_host: str = "127.0.0.1",
        names: Iterable[str] = (),
        refusal_body: RefusalBody = plain_body,
    ) -> None:
        self._app = app
        self._refusal_body = refusal_body
        self._names = frozenset(_bare(name) for name in (*_OWN_NAMES, bound_host, *names)) - {""}
        self._any_address = _is_unspecified(_bare(bound_host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or self.allows(_header(scope, b"host")):
            await self._app(scope, receive, send)
            return
        await send_refusal(
            scope,
            send,
            Refusal(
                403,
                "host_not_allowed",
                "The Host header of this request is not a name of this server. Use 127.0.0.1 or localhost, "
                "or add the name to the allowed hosts in its settings.",
            ),
            self._refusal_body,
        )

    def allows(self, host: bytes | None) -> bool:
        """Whether a Host header's value names us."""
        if host is None:
            return False
        name = _bare(host.decode("latin-1"))
        return name in self._names or (self._any_address and _is_address(name))


class CrossOrigin:
    """Grant the origins in ``allowed`` what a browser asks for; grant every other origin nothing. ``*`` stands for every origin.

    A request from elsewhere is not refused, since the browser hides the reply from its page anyway; a preflight from elsewhere
    reaches the application, which has no OPTIONS route.

    Args:
        app: what is guarded.
        allowed: origins as browsers write them, e.g. ``http://localhost:3000``, or ``*``.
    """

    def __init__(self, app: ASGIApp, *, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(origin.rstrip("/").lower().encode("latin-1") for origin in allowed)
        self._all = b"*" in self._allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the grant if there is one."""
        origin = _header(scope, b"origin") if scope["type"] == "http" and self._allowed else None
        if origin is None or not (self._all or origin.lower() in self._allowed):
            await self._app(scope, receive, send)
            return
        grant: list[Header] = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None:
            asked = _header(scope, b"access-control-request-headers") or b"authorization, content-type"
            headers = [
                *grant,
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", asked),
                (b"access-control-max-age", b"%d" % _PREFLIGHT_MAX_AGE_S),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return

        async def granting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                message = {**message, "headers": [*headers, *grant, _exposed(headers)]}
            await send(message)

        await self._app(scope, receive, granting_send)


def _exposed(headers: Iterable[Header]) -> Header:
    """Lets a page read what a reply has beyond the fields that browsers show anyway, and the ids that it gets further out."""
    names = {name.lower() for name, _ in headers} | {b"x-request-id", b"request-id"}
    return b"access-control-expose-headers", b", ".join(sorted(names - _SHOWN_ANYWAY))


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value)
    return None


def _bare(host: str) -> str:
    """The host alone: no port, no brackets, no trailing dot, lower case. Empty when it is none."""
    host = host.strip().lower()
    port = ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
    elif host.count(":") == 1:
        host, colon, port = host.partition(":")
        port = colon + port
    if port and not (port[0] == ":" and (port[1:] == "" or (port[1:].isascii() and port[1:].isdigit()))):
        return ""
    return host.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_unspecified
