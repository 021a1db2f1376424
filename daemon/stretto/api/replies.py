"""JSON replies, and errors as replies. Pure ASGI."""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.api.envelopes import Envelope, envelope_of, plain_envelope
from stretto.errors import InvalidRequest, NotFound, StrettoError
from stretto.serving import ClientDisconnected

logger = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

_ID_HEADERS = (b"x-request-id", b"request-id")
"""Clients of OpenAI's API read the one, clients of Anthropic's the other."""


def new_request_id(prefix: str) -> str:
    """A fresh id: the prefix and 32 hex digits."""
    return prefix + uuid.uuid4().hex


async def send_json_bytes(
    send: Send, body: bytes, *, status: int = 200, headers: Sequence[Header] = ()
) -> None:
    """Send a JSON body that is already encoded."""
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_json(
    send: Send, document: object, *, status: int = 200, headers: Sequence[Header] = ()
) -> None:
    """Send a document as JSON."""
    body = json.dumps(document, ensure_ascii=False).encode()
    await send_json_bytes(send, body, status=status, headers=headers)


async def send_error(
    send: Send,
    error: StrettoError,
    *,
    request_id: str,
    headers: Sequence[Header] = (),
    envelope: Envelope = plain_envelope,
) -> None:
    """Send an error in its envelope, with the header fields that its kind asks for.

    ``x-should-retry`` tells clients that retry by themselves whether to; it goes before what they would make of the status.
    """
    fields = [*headers, (b"x-should-retry", b"true" if error.retryable else b"false")]
    if error.retry_after_s is not None:
        fields.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    if error.status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    status, body = envelope(error, request_id)
    await send_json_bytes(send, body, status=status, headers=fields)


def internal_error() -> StrettoError:
    """What a caller is told of a failure that is ours; the log has the rest."""
    return StrettoError("The server failed to answer this request; its log has the details.")


class RequestTag:
    """Outermost wrapper: every request gets an id (``scope["state"]["request_id"]``) and every reply tells it.

    A route may put a better id into the state before it replies.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and tag its reply."""
        state = scope.setdefault("state", {})
        state["request_id"] = new_request_id("req-")

        async def tagged_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [field for field in message.get("headers", ()) if field[0] not in _ID_HEADERS]
                tags = [(name, state["request_id"].encode()) for name in _ID_HEADERS]
                message = {**message, "headers": [*kept, *tags]}
            await send(message)

        await self._app(scope, receive, tagged_send)


class ErrorReplies:
    """Turns what the application raises into replies. Nothing of an unexpected error reaches the caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer for it when it fails."""
        begun = False

        async def noting_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        headers: Sequence[Header] = ()
        try:
            await self._app(scope, receive, noting_send)
            return
        except ClientDisconnected:
            return
        except StrettoError as error:
            failure = error
        except HTTPException as error:
            failure = _of_routing(scope, error)
            headers = [
                (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
            ]
        except Exception:
            logger.exception("Request %s failed", scope["state"].get("request_id"))
            failure = internal_error()
        if (
            not begun
        ):  # else the server sees an unfinished reply and cuts it, which the client can tell from a whole one
            await send_error(
                send,
                failure,
                request_id=scope["state"]["request_id"],
                headers=headers,
                envelope=envelope_of(scope),
            )


async def no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    """The router's last resort."""
    raise NotFound(f"There is no {scope['method']} {scope['path'][:200]} here.")


def _of_routing(scope: Scope, error: HTTPException) -> StrettoError:
    if error.status_code == 405:
        return InvalidRequest(
            f"{scope['path'][:200]} does not take {scope['method'][:20]}; the Allow header names what it takes.",
            code="method_not_allowed",
            status=405,
        )
    return InvalidRequest(str(error.detail), code="invalid_request", status=error.status_code)
