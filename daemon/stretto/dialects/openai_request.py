"""Parsing a chat request: bytes to the canonical Request, or the one error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import Request
from stretto.dialects.fields import read_fields
from stretto.dialects.openai_format import parse_constraint
from stretto.dialects.openai_messages import parse_messages
from stretto.dialects.openai_sampling import (
    parse_ignore_eos,
    parse_include_usage,
    parse_priority,
    parse_stop,
)
from stretto.dialects.openai_tools import parse_reasoning, parse_tool_choice, parse_tools
from stretto.dialects.sampling import parse_sampling
from stretto.errors import InvalidRequest
from stretto.schemas import shown

CHAT_SCHEMA = "openai-chat-request"


def parse_chat(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/chat/completions``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields`` and ``parse_messages``; ``param`` is the field's path.
    """
    fields = read_fields(CHAT_SCHEMA, body)
    tools = parse_tools(fields)
    choice = parse_tool_choice(fields, tools)
    constraint = parse_constraint(fields)
    max_tokens = _max_tokens(fields)
    return Request(
        id=request_id,
        model=fields["model"],
        messages=parse_messages(fields["messages"]),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.get("parallel_tool_calls", True),
        reasoning=parse_reasoning(fields),
        sampling=parse_sampling(fields),
        max_tokens=max_tokens,
        stop=parse_stop(fields),
        ignore_eos=_ignore_eos(
            fields, max_tokens, constraint, may_call=bool(tools) and choice.mode != "none"
        ),
        n=int(fields.get("n", 1)),
        logprobs=_logprobs(fields),
        stream=fields.get("stream", False),
        include_usage=parse_include_usage(fields),
        template_kwargs=fields.get("chat_template_kwargs", {}),
        predicted=_predicted(fields),
        user=fields.get("user"),
        priority=parse_priority(fields),
        constraint=constraint,
    )


def _ignore_eos(
    fields: Mapping[str, Any], max_tokens: int | None, constraint: Constraint | None, *, may_call: bool
) -> bool:
    ignore = parse_ignore_eos(fields, max_tokens=max_tokens, constraint=constraint)
    if ignore and may_call:
        raise InvalidRequest(
            "'ignore_eos' is true, but what a call must keep to says where it ends.",
            param="ignore_eos",
            remedy='Leave it out, or send tool_choice "none".',
        )
    return ignore


def _predicted(fields: Mapping[str, Any]) -> str:
    content = fields.get("prediction", {}).get("content", "")
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


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
