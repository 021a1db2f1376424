"""The replies that serving makes by itself: a JSON error envelope, ours or one that is brought along for the path."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Scope, Send

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned down before any application sees it."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request, sent again, may well be answered: after a failure of ours, and where it was the network that was slow."""
        return self.retry_after_s is not None or self.status in (408, 500)


RefusalBody = Callable[[Refusal, str, str], tuple[int, bytes]]
"""From a refusal, the path that was asked for (empty when it is not known) and the request's id: status and JSON body."""


def error_type(status: int) -> str:
    """The envelope's ``type`` for an HTTP status."""
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def plain_body(refusal: Refusal, path: str, request_id: str) -> tuple[int, bytes]:
    """The envelope where nobody brings another."""
    error = {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": None,
        "code": refusal.code,
    }
    return refusal.status, json.dumps({"error": error}).encode()


def refusal_reply(
    refusal: Refusal, path: str, body_of: RefusalBody, request_id: str | None = None
) -> tuple[int, list[Header], bytes]:
    """Status, header fields and body; with a fresh request id where there is no request yet that could have one."""
    request_id = request_id or f"req-{uuid.uuid4().hex}"
    status, body = body_of(refusal, path, request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        (b"request-id", request_id.encode()),
        (b"x-should-retry", b"true" if refusal.retryable else b"false"),
    ]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    return status, headers, body


def raw_reply(refusal: Refusal) -> bytes:
    """A whole HTTP/1.1 reply that closes the connection, for where there is no connection state yet."""
    status, headers, body = refusal_reply(refusal, "", plain_body)
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    fields = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return head + fields + b"connection: close\r\n\r\n" + body


async def send_refusal(scope: Scope, send: Send, refusal: Refusal, body_of: RefusalBody) -> None:
    """Send the refusal from inside an ASGI application, under the id that the request has."""
    request_id = scope.get("state", {}).get("request_id")
    status, headers, body = refusal_reply(refusal, scope["path"], body_of, request_id)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
