"""The replies that serving makes by itself: one JSON error envelope, the same as everywhere else."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Send

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned down before any application sees it."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None


def error_type(status: int) -> str:
    """The envelope's ``type`` for an HTTP status."""
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def envelope(refusal: Refusal) -> bytes:
    """The refusal as a JSON body."""
    error = {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": None,
        "code": refusal.code,
    }
    return json.dumps({"error": error}).encode()


def refusal_headers(refusal: Refusal, body: bytes) -> list[Header]:
    """Header fields for ``body``; a fresh ``x-request-id`` too, since there is no request yet that could have one."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", b"req-" + uuid.uuid4().hex.encode()),
    ]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    return headers


def raw_reply(refusal: Refusal) -> bytes:
    """A whole HTTP/1.1 reply that closes the connection, for where there is no connection state yet."""
    body = envelope(refusal)
    head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    fields = b"".join(name + b": " + value + b"\r\n" for name, value in refusal_headers(refusal, body))
    return head + fields + b"connection: close\r\n\r\n" + body


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """Send the refusal from inside an ASGI application."""
    body = envelope(refusal)
    headers = refusal_headers(refusal, body)
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
