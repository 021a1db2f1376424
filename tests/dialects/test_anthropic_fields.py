"""The fields of a Messages request: what each becomes, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params

from stretto.conversation import Constraint, Reasoning, SamplingParams, ToolChoice, ToolSpec
from stretto.dialects.anthropic import parse_count, parse_messages
from stretto.dialects.fields import field_table
from stretto.errors import InvalidRequest
from support.anthropic_requests import CALLING, TOOL, USER, body, parse, refusal, result

SCHEMA = "anthropic-messages-request"
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
PREFILL = [USER, {"role": "assistant", "content": "("}]


def test_the_least_there_is() -> None:
    request = parse()
    assert (request.id, request.model, request.max_tokens) == ("msg_1", "m", 64)
    assert request.lower_max_tokens
    assert request.sampling == SamplingParams()
    assert request.reasoning == Reasoning(enabled=False)
    assert (request.stream, request.n, request.stop, request.tools) == (False, 1, (), ())
    assert request.tool_choice == ToolChoice("auto")
    assert request.parallel_tool_calls


def test_everything_there_is() -> None:
    request = parse(
        system="s",
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        seed=7,
        stop_sequences=["a", "", "b"],
        tools=[{**TOOL, "strict": True, "cache_control": {"type": "ephemeral"}, "type": "custom"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 32, "display": "omitted"},
        output_config={"effort": "high", "format": FORMAT, "task_budget": None},
        metadata={"user_id": "u" * 600},
        chat_template_kwargs={"x": 1},
        cache_control={"type": "ephemeral"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        speed="standard",
    )
    assert request.stream
    assert request.sampling == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1, seed=7
    )
    assert request.stop == ("a", "b")
    assert request.tools == (ToolSpec("f", "Does.", {"type": "object"}, strict=True),)
    assert request.tool_choice == ToolChoice("required")
    assert not request.parallel_tool_calls
    assert request.reasoning == Reasoning(True, "high", 32, hidden=True)
    assert request.constraint == Constraint(
        "json_schema", '{"type": "object", "properties": {"b": {}, "a": {}}}', "output_config.format.schema"
    )
    assert request.user == "u" * 600
    assert request.template_kwargs == {"x": 1}


def test_null_is_absent() -> None:
    fields = dict.fromkeys(field_table(SCHEMA).known - {"model", "max_tokens", "messages"})
    assert parse(**fields) == parse()


def test_every_field_of_the_official_client_is_known() -> None:
    names: set[str] = set()
    for params in (
        message_create_params.MessageCreateParamsBase,
        message_count_tokens_params.MessageCountTokensParams,
        beta_create_params.MessageCreateParamsBase,
        beta_count_params.MessageCountTokensParams,
    ):
        names |= set(params.__annotations__)
    assert names - field_table(SCHEMA).known == set()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "f"}, ToolChoice("required", ("f",))),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    request = parse(tools=[TOOL], tool_choice=choice)
    assert request.tool_choice == expected
    assert request.parallel_tool_calls


AFTER_A_CALL = [USER, CALLING, {"role": "user", "content": [result()]}]


@pytest.mark.parametrize(
    ("thinking", "turns", "expected"),
    [
        ({"type": "disabled"}, [USER], Reasoning(False)),
        ({"type": "adaptive"}, [USER], Reasoning(True)),
        ({"type": "adaptive", "display": "summarized"}, [USER], Reasoning(True)),
        ({"type": "adaptive", "display": "omitted"}, [USER], Reasoning(True, hidden=True)),
        ({"type": "enabled", "budget_tokens": 10}, [USER], Reasoning(True, None, 10)),
        ({"type": "between_tools"}, [USER], Reasoning(False)),
        ({"type": "between_tools"}, AFTER_A_CALL, Reasoning(True)),
        ({"type": "adaptive"}, PREFILL, Reasoning(False)),
    ],
)
def test_thinking(thinking: Any, turns: Any, expected: Reasoning) -> None:
    assert parse(thinking=thinking, messages=turns).reasoning == expected


def test_both_names_of_the_format() -> None:
    newer, older = parse(output_config={"format": FORMAT}), parse(output_format=FORMAT)
    assert newer.constraint is not None
    assert older.constraint == Constraint("json_schema", newer.constraint.text, "output_format.schema")


def test_counting_needs_no_max_tokens() -> None:
    data = json.dumps({"model": "m", "messages": [USER], "system": "s"}).encode()
    assert parse_count(data, request_id="msg_1").messages == parse(system="s").messages
    assert parse_count(body(), request_id="msg_1") == parse()
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(data, request_id="msg_1")
    assert (caught.value.code, caught.value.param) == ("missing_parameter", "max_tokens")


def test_max_tokens_zero_answers_nothing() -> None:
    assert parse(max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, "missing_parameter", "model"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": "9"}, "invalid_value", "max_tokens"),
        ({"keep_alive": "5m"}, "unknown_parameter", "keep_alive"),
        ({"container": "c"}, "unsupported_value", "container"),
        ({"mcp_servers": []}, "unsupported_value", "mcp_servers"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"stop_sequences": "x"}, "invalid_value", "stop_sequences"),
        ({"system": [{"type": "image"}]}, "missing_parameter", "system[0].text"),
        ({"tools": [{"name": "f"}]}, "missing_parameter", "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "unsupported_value", "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice.type"),
        ({"tool_choice": {"type": "required"}}, "invalid_value", "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "invalid_value", "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "missing_parameter", "tool_choice.name"),
        ({"thinking": {"type": "on"}}, "invalid_value", "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "missing_parameter", "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "invalid_value", "thinking.budget_tokens"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "messages": PREFILL},
            "invalid_value",
            "thinking.type",
        ),
        ({"output_config": {"format": {"type": "text"}}}, "missing_parameter", "output_config.format.schema"),
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "invalid_value", "output_format"),
        ({"output_format": FORMAT, "messages": PREFILL}, "invalid_value", "output_format"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: Any, code: str, param: str) -> None:
    found = refusal(**fields)
    assert (found.code, found.param) == (code, param)
