"""Parsing a Messages request: bytes to the canonical Request, or the one error that says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import Message, Reasoning, Request
from stretto.dialects.anthropic_messages import Conversation, parse_conversation
from stretto.dialects.anthropic_tools import parse_choice, parse_tools
from stretto.dialects.fields import read_fields
from stretto.dialects.sampling import parse_sampling
from stretto.errors import InvalidRequest

MESSAGES_SCHEMA = "anthropic-messages-request"


def parse_messages(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/messages``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields``, ``parse_conversation``, ``parse_tools`` and ``parse_choice``; ``param`` is the
            field's path.
    """
    fields = read_fields(MESSAGES_SCHEMA, body)
    if "max_tokens" not in fields:
        raise InvalidRequest(
            "'max_tokens' is missing; it is required.", code="missing_parameter", param="max_tokens"
        )
    return _request(fields, request_id)


def parse_count(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/messages/count_tokens``: the same, but for ``max_tokens``, which it does not need.

    Raises:
        InvalidRequest: see ``parse_messages``.
    """
    return _request(read_fields(MESSAGES_SCHEMA, body), request_id)


def _request(fields: Mapping[str, Any], request_id: str) -> Request:
    conversation = parse_conversation(fields.get("system"), fields["messages"])
    tools = parse_tools(fields.get("tools", ()))
    choice = fields.get("tool_choice", {"type": "auto"})
    return Request(
        id=request_id,
        model=fields["model"],
        messages=conversation.messages,
        tools=tools,
        tool_choice=parse_choice(choice, tools),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        reasoning=_reasoning(fields, conversation),
        continues=conversation.continues,
        sampling=parse_sampling(fields),
        max_tokens=int(fields["max_tokens"]) if "max_tokens" in fields else None,
        lower_max_tokens=True,
        stop=tuple(filter(None, fields.get("stop_sequences", ()))),
        stream=fields.get("stream", False),
        include_usage=True,
        template_kwargs=fields.get("chat_template_kwargs", {}),
        user=fields.get("metadata", {}).get("user_id"),
        constraint=_constraint(fields, conversation),
    )


def _reasoning(fields: Mapping[str, Any], conversation: Conversation) -> Reasoning:
    """Thinking is off unless asked for. An answer that has begun is past it."""
    thinking = fields.get("thinking", {"type": "disabled"})
    kind, budget = thinking["type"], thinking.get("budget_tokens")
    effort = fields.get("output_config", {}).get("effort")
    if kind == "enabled":
        if conversation.continues:
            raise InvalidRequest(
                "'thinking.type' is \"enabled\", but the messages end with the beginning of the answer, which thinking comes before.",
                param="thinking.type",
                remedy="Leave thinking out, or end the messages with a turn of the user.",
            )
        if "max_tokens" in fields and 0 < fields["max_tokens"] <= budget:
            raise InvalidRequest(
                f"'thinking.budget_tokens' is {budget}; it must be less than 'max_tokens', which is {fields['max_tokens']}: "
                "the answer comes after the thinking.",
                param="thinking.budget_tokens",
            )
    wanted = (
        kind in ("enabled", "adaptive") or (kind == "between_tools" and _after_a_call(conversation.messages))
    ) and not conversation.continues
    return Reasoning(
        enabled=wanted,
        effort=effort,
        budget_tokens=int(budget) if wanted and budget is not None else None,
        hidden=thinking.get("display") == "omitted",
    )


def _after_a_call(messages: tuple[Message, ...]) -> bool:
    return messages[-1].role == "tool"


def _constraint(fields: Mapping[str, Any], conversation: Conversation) -> Constraint | None:
    wanted = {
        "output_config.format": fields.get("output_config", {}).get("format"),
        "output_format": fields.get("output_format"),
    }
    given = {name: form for name, form in wanted.items() if form is not None}
    if len(given) > 1:
        raise InvalidRequest(
            "'output_config.format' and 'output_format' both say what the answer must be.",
            param="output_format",
            remedy="Send one of them.",
        )
    for name, form in given.items():
        if conversation.continues:
            raise InvalidRequest(
                f"'{name}' says what the whole answer must be, but the messages end with the beginning of the answer.",
                param=name,
                remedy="End the messages with a turn of the user.",
            )
        # The order of properties is part of a grammar, and JSON text keeps it.
        return Constraint("json_schema", json.dumps(form["schema"], ensure_ascii=False), f"{name}.schema")
    return None
