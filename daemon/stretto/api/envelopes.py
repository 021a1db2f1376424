"""Which dialect's envelope an error wears: that of the path it was asked at."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from stretto.dialects.openai_errors import error_body
from stretto.errors import StrettoError

Envelope = Callable[[StrettoError], bytes]

_BY_PATH: tuple[tuple[str, Envelope], ...] = ()
"""Path prefixes and their envelopes; every other path has OpenAI's."""


def envelope_of(scope: Scope) -> Envelope:
    """How an error is written for whoever asked this. Works for paths without a route too."""
    path = f"{scope['path']}/"
    return next((envelope for prefix, envelope in _BY_PATH if path.startswith(prefix)), error_body)
