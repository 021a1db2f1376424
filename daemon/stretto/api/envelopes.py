"""Which dialect's envelope an error wears: that of the path it was asked at."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from stretto.dialects import anthropic_errors, openai_responses
from stretto.dialects.openai_errors import error_body
from stretto.errors import StrettoError
from stretto.serving import Refusal

Envelope = Callable[[StrettoError, str], tuple[int, bytes]]
"""From an error and the id of the request: the status and the body of the reply."""


def plain_envelope(error: StrettoError, request_id: str) -> tuple[int, bytes]:
    """OpenAI's envelope, which is ours wherever no dialect says otherwise."""
    return error.status, error_body(error)


_BY_PATH: tuple[tuple[str, Envelope], ...] = (
    ("/v1/messages/", anthropic_errors.error_reply),
    ("/v1/responses/", openai_responses.error_reply),
)
"""Path prefixes and their envelopes."""
_SHARED_PATH = "/v1/models/"
"""Asked by clients of every dialect: one of them says by a header which it is."""


def envelope_of(scope: Scope) -> Envelope:
    """How an error is written for whoever asked this. Works for paths without a route too."""
    path = f"{scope['path']}/"
    if path.startswith(_SHARED_PATH) and is_anthropic(scope):
        return anthropic_errors.error_reply
    return _of_path(path)


def is_anthropic(scope: Scope) -> bool:
    """Whether a client of Anthropic's API asks, at a path where others ask too."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def refusal_body(refusal: Refusal, path: str, request_id: str) -> tuple[int, bytes]:
    """The same for what the server refuses by itself, before or without the application."""
    error = StrettoError(
        refusal.message, code=refusal.code, status=refusal.status, retry_after_s=refusal.retry_after_s
    )
    return _of_path(f"{path}/")(error, request_id)


def _of_path(path: str) -> Envelope:
    return next((envelope for prefix, envelope in _BY_PATH if path.startswith(prefix)), plain_envelope)
