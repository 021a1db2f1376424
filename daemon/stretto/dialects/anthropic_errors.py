"""Errors in Anthropic's envelope."""

from __future__ import annotations

from stretto.dialects.json_text import dumps
from stretto.errors import ContextLengthExceeded, StrettoError

_OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def error_status(error: StrettoError) -> int:
    """The HTTP status; what is 503 elsewhere is 529 here, "overloaded"."""
    return _OVERLOADED if error.status == 503 else error.status


def error_object(error: StrettoError, request_id: str) -> dict[str, object]:
    """``{"type": "error", "error": {type, message}, "request_id"}``; ``error`` has our ``code``, ``param`` and ``remedy`` too.

    A prompt that is too long is told in the words by which clients of this dialect know that they must compact the conversation.
    """
    status = error_status(error)
    message = error.message
    if isinstance(error, ContextLengthExceeded) and error.prompt_tokens >= error.limit_tokens:
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit_tokens - 1} maximum"
    fields: dict[str, object] = {
        "type": _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error"),
        "message": message,
        "code": error.code,
        "param": error.param,
    }
    if error.remedy is not None:
        fields["remedy"] = error.remedy
    return {"type": "error", "error": fields, "request_id": request_id}


def error_reply(error: StrettoError, request_id: str) -> tuple[int, bytes]:
    """An error reply's status and body."""
    return error_status(error), dumps(error_object(error, request_id)).encode()
