"""Reading a request's body, and parsing it where it hurts nobody."""

from __future__ import annotations

from functools import partial

import trio
from starlette.types import Receive, Scope

from stretto.conversation.messages import Request
from stretto.dialects.dialect import Parse
from stretto.errors import InvalidRequest
from stretto.serving import read_body

_PARSED_ON_THE_LOOP_BYTES = 64 * 1024
_PARSED_AT_ONCE = 2  # large bodies; a parsed one takes several times its size


class RequestReader:
    """Reads the requests of one route: small bodies are parsed at once, large ones in a thread, few at a time.

    Args:
        parse: of the route's dialect.
    """

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._parsing = trio.CapacityLimiter(_PARSED_AT_ONCE)

    async def read(self, scope: Scope, receive: Receive) -> tuple[Request, bytes]:
        """The request and its body.

        Raises:
            InvalidRequest: ``unsupported_media_type``, or whatever the parser finds.
            ClientDisconnected: the client went before the end.
        """
        require_json(scope)
        request_id = scope["state"]["request_id"]
        body = await read_body(receive)
        if len(body) > _PARSED_ON_THE_LOOP_BYTES:
            parse = partial(self._parse, body, request_id=request_id)
            return await trio.to_thread.run_sync(parse, limiter=self._parsing), body
        return self._parse(body, request_id=request_id), body


def require_json(scope: Scope) -> None:
    """Check that the body is declared as JSON. A page of another site cannot declare that without asking first (CORS).

    Raises:
        InvalidRequest: 415, code ``unsupported_media_type``.
    """
    declared = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            declared = value
    kind = bytes(declared).partition(b";")[0].strip().lower()
    if kind != b"application/json":
        shown = kind.decode("latin-1")[:100] or "missing"
        raise InvalidRequest(
            f"The Content-Type of this request is {shown}; it must be application/json.",
            code="unsupported_media_type",
            status=415,
        )
