"""Parsing a Responses request: bytes to the canonical Request, or the one error that says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import Request, ToolChoice
from stretto.dialects.fields import read_fields
from stretto.dialects.openai_responses_items import ItemReader
from stretto.dialects.openai_responses_tools import FunctionNames, Tools, parse_tool_choice, parse_tools
from stretto.dialects.openai_sampling import parse_priority, parse_stop
from stretto.dialects.openai_tools import parse_reasoning
from stretto.dialects.sampling import parse_sampling
from stretto.errors import InvalidRequest
from stretto.schemas import shown

RESPONSES_SCHEMA = "openai-responses-request"
_SEALED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Reflected:
    """What the renderer needs of a request besides.

    Attributes:
        fields: those that a response says again.
        names: see FunctionNames.
        sealed: whether reasoning comes with ``encrypted_content``.
        summarised: whether it stands in ``summary``.
    """

    fields: Mapping[str, Any]
    names: FunctionNames
    sealed: bool
    summarised: bool


def parse_responses(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/responses``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields``, ``parse_tools``, ``parse_tool_choice`` and ``ItemReader.read``; ``param`` is the
            field's path.
    """
    fields = read_fields(RESPONSES_SCHEMA, body)
    _refuse_values(fields)
    tools = parse_tools(fields.get("tools", ()))
    reader = ItemReader(fields.get("instructions"), tools.names)
    source = fields["input"]
    messages = reader.read([{"role": "user", "content": source}] if isinstance(source, str) else source)
    if not messages:
        raise InvalidRequest(
            "'input' has nothing but reasoning, which is part of a turn and none by itself.",
            code="invalid_message",
            param="input",
        )
    max_tokens = fields.get("max_output_tokens")
    include = fields.get("include", ())
    thinking = fields.get("reasoning", {})
    reflected = Reflected(
        fields=_said_again(fields, tools),
        names=tools.names,
        sealed=_SEALED in include,
        summarised=(thinking.get("summary") or thinking.get("generate_summary")) is not None,
    )
    return Request(
        id=request_id,
        model=fields["model"],
        messages=messages,
        tools=tools.specs,
        tool_choice=parse_tool_choice(fields["tool_choice"], tools.names)
        if "tool_choice" in fields
        else ToolChoice(),
        parallel_tool_calls=fields.get("parallel_tool_calls", True),
        reasoning=parse_reasoning({**fields, "reasoning_effort": thinking.get("effort")}),
        sampling=parse_sampling(fields),
        max_tokens=None if max_tokens is None else int(max_tokens),
        stop=parse_stop(fields),
        logprobs=int(fields.get("top_logprobs", 0))
        if _LOGPROBS in include or "top_logprobs" in fields
        else None,
        stream=fields.get("stream", False),
        template_kwargs=fields.get("chat_template_kwargs", {}),
        user=fields.get("user"),
        priority=parse_priority(fields),
        constraint=_constraint(fields),
        reflected=reflected,
    )


def _refuse_values(fields: Mapping[str, Any]) -> None:
    """Refuse what the API has and this daemon has not."""
    if fields.get("truncation") == "auto":
        raise _unsupported("truncation", "auto", 'Send "disabled": nothing is ever cut to fit.')
    if fields.get("background"):
        raise _unsupported("background", True, "Leave it out; the answer comes in the reply or its stream.")
    verbosity = fields.get("text", {}).get("verbosity")
    if verbosity not in (None, "medium"):
        raise _unsupported("text.verbosity", verbosity, "Leave it out, and ask for the length in a message.")


def _unsupported(path: str, value: object, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{path}' is {shown(value)}, which is not supported.",
        code="unsupported_value",
        param=path,
        remedy=remedy,
    )


def _constraint(fields: Mapping[str, Any]) -> Constraint | None:
    form = fields.get("text", {}).get("format") or {"type": "text"}
    if form["type"] == "text":
        return None
    if form["type"] == "json_object":
        return Constraint("json_object", "", "text.format")
    # The order of properties is part of a grammar, and JSON text keeps it.
    return Constraint("json_schema", json.dumps(form["schema"], ensure_ascii=False), "text.format.schema")


def _said_again(fields: Mapping[str, Any], tools: Tools) -> dict[str, Any]:
    thinking = fields.get("reasoning", {})
    form = fields.get("text", {}).get("format") or {"type": "text"}
    if form["type"] == "json_schema":
        form = {"name": "response", **form}
    return {
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata", {}),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {
            "effort": thinking.get("effort"),
            "summary": thinking.get("summary") or thinking.get("generate_summary"),
        },
        "store": False,
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": form},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [_with_defaults(tool) for tool in tools.kept],
        "top_logprobs": fields.get("top_logprobs", 0),
        "top_p": fields.get("top_p", 1.0),
        "truncation": "disabled",
        "user": fields.get("user"),
    }


def _with_defaults(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with all the properties that a response's tools have."""
    if tool["type"] != "function":
        return dict(tool)
    return {"description": None, "parameters": None, "strict": False, **tool}
