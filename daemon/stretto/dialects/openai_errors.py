"""Errors in OpenAI's envelope."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.dialects.json_text import dumps
from stretto.errors import StrettoError

_NO_NAMES: Mapping[str, str] = {}
_TYPES = {401: "authentication_error", 402: "insufficient_quota", 429: "rate_limit_error"}


def error_object(error: StrettoError, names: Mapping[str, str] = _NO_NAMES) -> dict[str, object]:
    """``{"error": {message, type, param, code}}``, with a ``remedy`` when there is one.

    Args:
        error: what went wrong.
        names: fields that have another name on the wire.
    """
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    fields: dict[str, object] = {
        "message": error.message,
        "type": kind,
        "param": names.get(error.param or "", error.param),
        "code": error.code,
    }
    if error.remedy is not None:
        fields["remedy"] = error.remedy
    return {"error": fields}


def error_body(error: StrettoError, names: Mapping[str, str] = _NO_NAMES) -> bytes:
    """An error reply's body; for ``names`` see ``error_object``."""
    return dumps(error_object(error, names)).encode()
