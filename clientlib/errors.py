"""What can go wrong, as types: every error says what happened, where, and what to do about it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal


class ClientError(Exception):
    """Base of every error that clientlib raises on purpose.

    Attributes:
        message: one or two sentences for a person.
        code: stable machine-readable name, e.g. ``context_length_exceeded``.
        status: HTTP status that carried it, or the one that belongs to an error inside a stream; None when there was none.
        param: the request field at fault, or None.
        remedy: what can be done about it, or None.
        retry_after_s: seconds after which a retry makes sense, or None.
        request_id: the daemon's id of the request, if it got as far as having one.
        text: the part of the answer that a stream had brought before it failed; empty otherwise.
    """

    code: str = "client_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        param: str | None = None,
        remedy: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.status = status
        self.param = param
        self.remedy = remedy
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.text = text

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (multiprocessing, executors); keyword-only arguments do not survive
        # the default protocol.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class DaemonNotRunning(ClientError):
    """Nobody listens at the address. ``address`` is the socket's path or the URL."""

    code = "daemon_not_running"

    def __init__(self, message: str, *, address: str = "", **more: Any) -> None:
        super().__init__(message, **more)
        self.address = address


class ConnectFailed(ClientError):
    """Somebody may listen, but we cannot get there (``permission_denied``, ``socket_path_too_long``, ``connect_failed``)."""

    code = "connect_failed"


class ConnectionLost(ClientError):
    """The connection ended before the reply did (``connection_lost``, ``stream_truncated``, ``stream_closed``).

    ``text`` is what had arrived of the answer. ``request_sent`` is False when the daemon cannot have seen the whole request.
    """

    code = "connection_lost"

    def __init__(self, message: str, *, request_sent: bool = True, **more: Any) -> None:
        super().__init__(message, **more)
        self.request_sent = request_sent


class Timeout(ClientError):
    """A limit of ``Timeouts`` or ``timeout_s`` ran out. The request was cancelled by closing its connection.

    ``phase`` tells which limit: ``connect``, ``write``, ``idle`` (no byte came for too long) or ``total``.
    """

    code = "timeout"

    def __init__(
        self, message: str, *, phase: Literal["connect", "write", "idle", "total"] = "total", **more: Any
    ) -> None:
        super().__init__(message, **more)
        self.phase = phase


class ProtocolError(ClientError):
    """What came is not HTTP/1.1, or not the reply that the call has: is it a Stretto daemon that listens there?"""

    code = "protocol_error"


class RequestError(ClientError):
    """The daemon refused the request (4xx). Nothing was generated."""

    code = "request_error"


class InvalidRequest(RequestError):
    """The request is at fault; ``param`` names the field."""

    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus answer do not fit the context; the message has both numbers."""

    code = "context_length_exceeded"


class AuthenticationError(RequestError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"


class InsufficientCredits(RequestError):
    """The key cannot pay what the request may cost; the message has both amounts."""

    code = "insufficient_credits"


class Forbidden(RequestError):
    """This caller may not do this."""

    code = "forbidden"


class NotFound(RequestError):
    """No such route, model or request (``not_found``, ``model_not_found``, ``request_not_found``)."""

    code = "not_found"


class RateLimited(RequestError):
    """Too much at once; ``retry_after_s`` says when to come back."""

    code = "rate_limited"


class QueueFull(RateLimited):
    """As many requests are waiting as the daemon's queue limit allows."""

    code = "queue_full"


class ServerError(ClientError):
    """The daemon failed at it (5xx), or a stream ended with an error."""

    code = "server_error"


class Unavailable(ServerError):
    """The daemon is draining or its engine is lost (``draining``, ``engine_unavailable``)."""

    code = "engine_unavailable"


_BY_CODE: Mapping[str, type[ClientError]] = MappingProxyType(
    {
        "context_length_exceeded": ContextLengthExceeded,
        "queue_full": QueueFull,
        "draining": Unavailable,
        "engine_unavailable": Unavailable,
    }
)

_BY_STATUS: Mapping[int, type[ClientError]] = MappingProxyType(
    {
        400: InvalidRequest,
        401: AuthenticationError,
        402: InsufficientCredits,
        403: Forbidden,
        404: NotFound,
        405: InvalidRequest,
        413: InvalidRequest,
        415: InvalidRequest,
        422: InvalidRequest,
        429: RateLimited,
        503: Unavailable,
    }
)

# An error frame inside a stream has no status line of its own: the one it would have had follows from code, then type.
_STATUS_BY_CODE: Mapping[str, int] = MappingProxyType(
    {
        "queue_full": 429,
        "draining": 503,
        "engine_unavailable": 503,
        "invalid_api_key": 401,
        "insufficient_credits": 402,
        "model_not_found": 404,
    }
)
_STATUS_BY_TYPE: Mapping[str, int] = MappingProxyType(
    {"invalid_request_error": 400, "authentication_error": 401, "rate_limit_error": 429, "server_error": 500}
)

_EXCERPT_CHARS = 200


def error_from_reply(
    status: int, body: bytes, *, retry_after: str | None = None, request_id: str | None = None
) -> ClientError:
    """The error that a whole reply means.

    Args:
        status: HTTP status, not one of success.
        body: the reply's body: the OpenAI envelope, or anything at all when something else answered.
        retry_after: the ``Retry-After`` header, in seconds or as a date.
        request_id: the ``x-request-id`` header.
    """
    retry_after_s = _seconds(retry_after)
    envelope = _envelope(body)
    if envelope is not None:
        return _from_envelope(envelope, status, retry_after_s, request_id, text="")
    excerpt = body[:_EXCERPT_CHARS].decode("utf-8", "replace").strip()
    message = f"The server answered HTTP {status}" + (f": {excerpt}" if excerpt else " with an empty body.")
    kind = _class_for(None, status)
    if kind is ProtocolError:
        return ProtocolError(message, status=status, request_id=request_id)
    return kind(
        message, code=f"http_{status}", status=status, retry_after_s=retry_after_s, request_id=request_id
    )


def error_from_frame(error: Mapping[str, Any], *, request_id: str | None, text: str) -> ClientError:
    """The error that a ``data: {"error": …}`` frame inside a stream means; ``text`` is the answer so far."""
    code, kind = _string(error, "code"), _string(error, "type")
    status = _STATUS_BY_CODE.get(code or "") or _STATUS_BY_TYPE.get(kind or "") or 500
    return _from_envelope(error, status, None, request_id, text=text)


def _from_envelope(
    error: Mapping[str, Any], status: int, retry_after_s: float | None, request_id: str | None, *, text: str
) -> ClientError:
    code = _string(error, "code")
    return _class_for(code, status)(
        _string(error, "message") or f"The server answered HTTP {status} without a message.",
        code=code,
        status=status,
        param=_string(error, "param"),
        remedy=_string(error, "remedy"),
        retry_after_s=retry_after_s,
        request_id=request_id,
        text=text,
    )


def _class_for(code: str | None, status: int) -> type[ClientError]:
    named = _BY_CODE.get(code or "") or _BY_STATUS.get(status)
    if named is not None:
        return named
    if 400 <= status < 500:
        return RequestError
    return ServerError if status >= 500 else ProtocolError


def _envelope(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None


def _string(error: Mapping[str, Any], name: str) -> str | None:
    value = error.get(name)
    return value if isinstance(value, str) and value else None


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        # Imported late: the date form is rare, and the package behind it costs more than all of clientlib.
        from email.utils import parsedate_to_datetime

        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    # Comparisons with NaN are false, so this also drops what is not a number.
    return min(max(seconds, 0.0), 86400.0) if seconds == seconds else None


def _rebuild(kind: type[ClientError], args: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
