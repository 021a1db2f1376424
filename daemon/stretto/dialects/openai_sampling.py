"""The fields about stopping, usage and urgency that OpenAI's dialects share; read once their types are known to be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.conversation.constraint import Constraint
from stretto.conversation.priority import Priority
from stretto.errors import InvalidRequest


def parse_stop(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings. Empty ones, which some clients send for an empty input field, can stop nothing and are dropped."""
    stop = fields.get("stop", ())
    return tuple(filter(None, (stop,) if isinstance(stop, str) else stop))


def parse_ignore_eos(
    fields: Mapping[str, Any], *, max_tokens: int | None, constraint: Constraint | None
) -> bool:
    """Whether the answer goes on past the tokens that end one.

    Raises:
        InvalidRequest: nothing else would end it, or what it must keep to says where it ends.
    """
    ignore: bool = fields.get("ignore_eos", False)
    if ignore and max_tokens is None:
        raise InvalidRequest(
            "'ignore_eos' is true, and nothing else would end the answer.",
            param="ignore_eos",
            remedy="Send max_tokens with it.",
        )
    if ignore and constraint is not None:
        raise InvalidRequest(
            "'ignore_eos' is true, but what an answer must keep to says where it ends.",
            param="ignore_eos",
            remedy="Leave it out.",
        )
    return ignore


def parse_include_usage(fields: Mapping[str, Any]) -> bool:
    """Whether a stream ends with usage, asked for in OpenAI's way or in OpenRouter's."""
    asked = fields.get("stream_options", {}).get("include_usage"), fields.get("usage", {}).get("include")
    return any(asked)


def parse_priority(fields: Mapping[str, Any]) -> Priority:
    """How urgent a request is by its ``service_tier``. ``flex`` is what OpenAI sells for work that may wait; no tier makes one more urgent."""
    return "background" if fields.get("service_tier") == "flex" else "normal"
