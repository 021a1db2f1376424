"""Errors in OpenAI's envelope."""

from __future__ import annotations

from stretto.dialects.json_text import dumps
from stretto.errors import StrettoError

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def error_object(error: StrettoError) -> dict[str, object]:
    """``{"error": {message, type, param, code}}``, with a ``remedy`` when there is one."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    fields: dict[str, object] = {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.code,
    }
    if error.remedy is not None:
        fields["remedy"] = error.remedy
    return {"error": fields}


def error_body(error: StrettoError) -> bytes:
    """An error reply's body."""
    return dumps(error_object(error)).encode()
