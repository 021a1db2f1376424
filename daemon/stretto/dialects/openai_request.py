"""Parsing a chat request: bytes to the canonical Request, or the one error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.conversation.messages import Request, ToolChoice
from stretto.dialects.fields import read_fields
from stretto.dialects.openai_format import parse_constraint
from stretto.dialects.openai_messages import parse_messages
from stretto.dialects.openai_sampling import (
    parse_ignore_eos,
    parse_include_usage,
    parse_sampling,
    parse_stop,
)
from stretto.errors import InvalidRequest
from stretto.schemas import shown

CHAT_SCHEMA = "openai-chat-request"
_TOOLS_REMEDY = 'Leave tools out, or send tool_choice "none"; functions are not offered to the model.'


def parse_chat(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/chat/completions``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields`` and ``parse_messages``; ``param`` is the field's path.
    """
    fields = read_fields(CHAT_SCHEMA, body)
    _check_tools(fields)
    constraint = parse_constraint(fields)
    max_tokens = _max_tokens(fields)
    return Request(
        id=request_id,
        model=fields["model"],
        messages=parse_messages(fields["messages"]),
        tool_choice=ToolChoice("none" if fields.get("tool_choice") == "none" else "auto"),
        sampling=parse_sampling(fields),
        max_tokens=max_tokens,
        stop=parse_stop(fields),
        ignore_eos=parse_ignore_eos(fields, max_tokens=max_tokens, constraint=constraint),
        n=int(fields.get("n", 1)),
        logprobs=_logprobs(fields),
        stream=fields.get("stream", False),
        include_usage=parse_include_usage(fields),
        template_kwargs=fields.get("chat_template_kwargs", {}),
        user=fields.get("user"),
        constraint=constraint,
    )


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    newer, older = fields.get("max_completion_tokens"), fields.get("max_tokens")
    if newer is not None and older is not None and newer != older:
        raise InvalidRequest(
            f"'max_completion_tokens' is {shown(newer)} and 'max_tokens' is {shown(older)}; they mean the same.",
            param="max_completion_tokens",
            remedy="Send one of them, or the same number twice.",
        )
    limit = older if newer is None else newer
    return None if limit is None else int(limit)


def _logprobs(fields: Mapping[str, Any]) -> int | None:
    alternatives = int(fields.get("top_logprobs", 0))
    if fields.get("logprobs", False):
        return alternatives
    if alternatives:
        raise InvalidRequest(
            f"'top_logprobs' is {alternatives}, but 'logprobs' is not true.",
            param="top_logprobs",
            remedy="Send logprobs: true with it.",
        )
    return None


def _check_tools(fields: Mapping[str, Any]) -> None:
    """Tools are not offered yet; a request that counts on them is refused, one that does not is served."""
    choice = fields.get("tool_choice", "auto")
    if choice == "none":
        return
    if fields.get("tools"):
        raise InvalidRequest(
            "'tools' are not supported.", code="unsupported_value", param="tools", remedy=_TOOLS_REMEDY
        )
    if choice == "auto":
        return
    if choice == "required" or isinstance(choice, dict):
        raise InvalidRequest(
            f"'tool_choice' is {shown(choice)}; calls of tools are not supported.",
            code="unsupported_value",
            param="tool_choice",
            remedy='Leave it out, or send "none".',
        )
    raise InvalidRequest(
        f'\'tool_choice\' is {shown(choice)}; it must be "none" or "auto".', param="tool_choice"
    )
