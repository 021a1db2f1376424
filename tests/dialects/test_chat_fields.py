"""Every rule of the request: with what breaks it, a 400 with code and param; without it, a request."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.conversation import Constraint, Reasoning, Request, SamplingParams, ToolChoice, ToolSpec
from stretto.dialects.fields import field_table
from stretto.errors import InvalidRequest
from stretto.schemas import schema
from support.conversation_requests import USER, body, parse, refusal

HUGE = 10**30
IGNORED: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"x": 1},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "store": True,
}
UNSUPPORTED: dict[str, Any] = {
    "audio": {"voice": "x", "format": "wav"},
    "function_call": "auto",
    "functions": [],
    "moderation": {},
    "priority": 1,
    "verbosity": "low",
    "web_search_options": {},
}

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}

# (fields, code, param, a part of the message)
BROKEN: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prediction": "x"}, "invalid_value", "prediction", "an object"),
    ({"prediction": {"type": "file", "content": "x"}}, "invalid_value", "prediction.type", "content"),
    ({"prediction": {"type": "content"}}, "missing_parameter", "prediction.content", "required"),
    ({"prediction": {"type": "content", "content": [{"type": "text"}]}}, "missing_parameter", "prediction.content[0].text", "required"),
    ({"model": None}, "missing_parameter", "model", "required"),
    ({"model": 7}, "invalid_value", "model", "a string"),
    ({"service_tier": 1}, "invalid_value", "service_tier", "a string"),
    ({"model": ""}, "invalid_value", "model", "at least 1 character"),
    ({"messages": None}, "missing_parameter", "messages", "required"),
    ({"messages": []}, "invalid_value", "messages", "at least 1"),
    ({"messages": "Hi"}, "invalid_value", "messages", "a list"),
    ({"stream": "yes"}, "invalid_value", "stream", "true or false"),
    ({"stream": 1}, "invalid_value", "stream", "true or false"),
    ({"stream_options": []}, "invalid_value", "stream_options", "an object"),
    ({"usage": {"include": 1}}, "invalid_value", "usage.include", "true or false"),
    ({"stream_options": {"include_usage": "x"}}, "invalid_value", "stream_options.include_usage", "true or false"),
    ({"temperature": -0.1}, "invalid_value", "temperature", "at least 0"),
    ({"temperature": 2.01}, "invalid_value", "temperature", "at most 2"),
    ({"temperature": "hot"}, "invalid_value", "temperature", '"hot"; it must be a number'),
    ({"temperature": True}, "invalid_value", "temperature", "a number"),
    ({"top_p": 0}, "invalid_value", "top_p", "greater than 0"),
    ({"top_p": 1.1}, "invalid_value", "top_p", "at most 1"),
    ({"top_k": -1}, "invalid_value", "top_k", "at least 0"),
    ({"top_k": 1.5}, "invalid_value", "top_k", "a whole number"),
    ({"ignore_eos": True}, "invalid_value", "ignore_eos", "nothing else"),
    ({"ignore_eos": True, "max_tokens": 2, "guided_regex": "a"}, "invalid_value", "ignore_eos", "keep to"),
    ({"ignore_eos": 1}, "invalid_value", "ignore_eos", "true or false"),
    ({"min_p": -0.1}, "invalid_value", "min_p", "at least 0"),
    ({"min_p": 1.1}, "invalid_value", "min_p", "at most 1"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty", "greater than 0"),
    ({"presence_penalty": -2.1}, "invalid_value", "presence_penalty", "at least -2"),
    ({"presence_penalty": 2.1}, "invalid_value", "presence_penalty", "at most 2"),
    ({"frequency_penalty": -2.1}, "invalid_value", "frequency_penalty", "at least -2"),
    ({"frequency_penalty": 2.1}, "invalid_value", "frequency_penalty", "at most 2"),
    ({"logit_bias": []}, "invalid_value", "logit_bias", "an object"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias", 'has the name "x"'),
    ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias", 'has the name "-1"'),
    ({"logit_bias": {"7": 101}}, "invalid_value", "logit_bias.7", "at most 100"),
    ({"logit_bias": {"7": -101}}, "invalid_value", "logit_bias.7", "at least -100"),
    ({"logit_bias": {"7": None}}, "invalid_value", "logit_bias.7", "a number"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "invalid_value", "logit_bias", "at most 1024"),
    ({"seed": 0.5}, "invalid_value", "seed", "a whole number"),
    ({"seed": 2**63}, "invalid_value", "seed", "at most 9223372036854775807"),
    ({"seed": -(2**63) - 1}, "invalid_value", "seed", "at least -9223372036854775808"),
    ({"seed": HUGE}, "invalid_value", "seed", "at most"),
    ({"stop": 7}, "invalid_value", "stop", "a string or a list"),
    ({"stop": ["a", 7]}, "invalid_value", "stop[1]", "a string"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop", "at most 16"),
    ({"stop": "a" * 1025}, "invalid_value", "stop", "at most 1024 characters"),
    ({"stop": ["a" * 1025]}, "invalid_value", "stop[0]", "at most 1024 characters"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens", "at least 1"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens", "at least 1"),
    ({"max_tokens": HUGE}, "invalid_value", "max_tokens", "at most"),
    ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens", "at least 1"),
    ({"max_completion_tokens": 2, "max_tokens": 3}, "invalid_value", "max_completion_tokens", "mean the same"),
    ({"n": 0}, "invalid_value", "n", "at least 1"),
    ({"n": 17}, "invalid_value", "n", "at most 16"),
    ({"logprobs": 1}, "invalid_value", "logprobs", "true or false"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs", "at most 20"),
    ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs", "at least 0"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs", "logprobs"),
    ({"logprobs": False, "top_logprobs": 2}, "invalid_value", "top_logprobs", "logprobs"),
    ({"chat_template_kwargs": []}, "invalid_value", "chat_template_kwargs", "an object"),
    ({"response_format": "text"}, "invalid_value", "response_format", "an object"),
    ({"response_format": {}}, "missing_parameter", "response_format.type", "required"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "one of"),
    ({"response_format": {"type": "json_schema"}}, "missing_parameter", "response_format.json_schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "missing_parameter", "response_format.json_schema.schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "invalid_value", "response_format.json_schema.schema", "an object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "name": "a b"}}}, "invalid_value", "response_format.json_schema.name", "a b"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "invalid_value", "response_format.json_schema.strict", "true or false"),
    ({"guided_json": 7}, "invalid_value", "guided_json", "a string or an object"),
    ({"guided_json": "{"}, "invalid_schema", "guided_json", "JSON"),
    ({"guided_json": "[]"}, "invalid_schema", "guided_json", "object"),
    ({"guided_json": {}, "guided_regex": "a"}, "invalid_value", "guided_regex", "guided_json"),
    ({"response_format": {"type": "json_object", "schema": []}}, "invalid_value", "response_format.schema", "an object"),
    ({"guided_regex": 7}, "invalid_value", "guided_regex", "a string"),
    ({"guided_regex": ""}, "invalid_value", "guided_regex", "at least 1"),
    ({"guided_choice": []}, "invalid_value", "guided_choice", "at least 1"),
    ({"guided_choice": "yes"}, "invalid_value", "guided_choice", "a list"),
    ({"guided_choice": ["yes", 1]}, "invalid_value", "guided_choice[1]", "a string"),
    ({"guided_choice": [""]}, "invalid_value", "guided_choice[0]", "at least 1"),
    ({"guided_grammar": {}}, "invalid_value", "guided_grammar", "a string"),
    ({"guided_grammar": "x" * 65537}, "invalid_value", "guided_grammar", "at most 65536"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "invalid_value", "guided_choice", "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "invalid_value", "guided_regex", "response_format"),
    ({"tools": {}}, "invalid_value", "tools", "a list"),
    ({"tools": [7]}, "invalid_value", "tools[0]", "an object"),
    ({"tools": [{}]}, "missing_parameter", "tools[0].type", "required"),
    ({"tools": [{"type": "function"}]}, "missing_parameter", "tools[0].function", "required"),
    ({"tools": [{"type": "function", "function": {}}]}, "missing_parameter", "tools[0].function.name", "required"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name", "a b"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "invalid_value", "tools[0].function.parameters", "an object"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "invalid_value", "tools[0].function.strict", "true or false"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "unsupported_value", "tools[0].type", "only functions"),
    ({"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].function.name", "another"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "invalid_value", "tool_choice.function.name", "no function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "missing_parameter", "tool_choice.function", "required"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "unsupported_value", "tool_choice.type", "custom"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "missing_parameter", "tool_choice.allowed_tools", "required"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [TOOL]}}}, "invalid_value", "tool_choice.allowed_tools.mode", "one of"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "required"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "invalid_value", "tool_choice.function.name", "no function"),
    ({"tools": [TOOL], "ignore_eos": True, "max_tokens": 2}, "invalid_value", "ignore_eos", "keep to"),
    ({"modalities": ["audio"]}, "invalid_value", "modalities[0]", "text"),
    ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort", "one of"),
    ({"thinking_budget": -1}, "invalid_value", "thinking_budget", "at least 0"),
    ({"tool_choice": "some"}, "invalid_value", "tool_choice", "some"),
    ({"tool_choice": 7}, "invalid_value", "tool_choice", "a string or an object"),
    ({"parallel_tool_calls": "no"}, "invalid_value", "parallel_tool_calls", "true or false"),
    ({"user": 7}, "invalid_value", "user", "a string"),
    ({"user": "u" * 513}, "invalid_value", "user", "at most 512"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "words"), BROKEN)
def test_a_broken_rule_is_named(fields: dict[str, Any], code: str, param: str, words: str) -> None:
    error = refusal(body(**fields))
    assert (error.code, error.param) == (code, param)
    assert words in error.message
    assert len(error.message) < 300
    # Without what broke it, the same request is fine; null counts as left out.
    optional = set(fields) - {"model", "messages"}
    parse()
    parse(**dict.fromkeys(optional))


PARSED: list[tuple[dict[str, Any], str, Any]] = [
    ({"stream": True}, "stream", True),
    ({"stream_options": {"include_usage": True, "include_obfuscation": False}}, "include_usage", True),
    ({"stream_options": {"include_usage": None}}, "include_usage", False),
    ({"stream_options": {}}, "include_usage", False),
    ({"usage": {"include": True}}, "include_usage", True),
    ({"usage": {"include": None}}, "include_usage", False),
    ({"prediction": {"type": "content", "content": "a = 1"}}, "predicted", "a = 1"),
    (
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
        "predicted",
        "ab",
    ),
    ({"prediction": None}, "predicted", ""),
    ({"temperature": 0}, "sampling.temperature", 0.0),
    ({"temperature": 2}, "sampling.temperature", 2.0),
    ({"top_p": 1}, "sampling.top_p", 1.0),
    ({"top_k": 0}, "sampling.top_k", 0),
    ({"top_k": 40.0}, "sampling.top_k", 40),
    ({"ignore_eos": True, "max_tokens": 2}, "ignore_eos", True),
    ({"min_p": 0.05}, "sampling.min_p", 0.05),
    ({"repetition_penalty": 1.1}, "sampling.repetition_penalty", 1.1),
    ({"presence_penalty": -2}, "sampling.presence_penalty", -2.0),
    ({"frequency_penalty": 2}, "sampling.frequency_penalty", 2.0),
    ({"logit_bias": {"7": -100, "008": 1.5}}, "sampling.logit_bias", {7: -100.0, 8: 1.5}),
    ({"seed": -(2**63)}, "sampling.seed", -(2**63)),
    ({"seed": 2**63 - 1}, "sampling.seed", 2**63 - 1),
    ({"stop": "END"}, "stop", ("END",)),
    ({"stop": ["a", "", "b"]}, "stop", ("a", "b")),
    ({"stop": ""}, "stop", ()),
    ({"stop": []}, "stop", ()),
    ({"max_tokens": 5}, "max_tokens", 5),
    ({"max_completion_tokens": 6}, "max_tokens", 6),
    ({"max_completion_tokens": 6, "max_tokens": 6}, "max_tokens", 6),
    ({}, "max_tokens", None),
    ({"n": 16}, "n", 16),
    ({"logprobs": True}, "logprobs", 0),
    ({"logprobs": True, "top_logprobs": 20}, "logprobs", 20),
    ({"logprobs": False, "top_logprobs": 0}, "logprobs", None),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "template_kwargs", {"enable_thinking": False}),
    ({"response_format": {"type": "text"}}, "constraint", None),
    ({"response_format": {"type": "text"}, "guided_regex": "a+"}, "constraint", Constraint("regex", "a+", "guided_regex")),
    ({"response_format": {"type": "json_object"}}, "constraint", Constraint("json_object", "", "response_format")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"b": 1, "a": "é"}, "strict": True}}},
        "constraint",
        Constraint("json_schema", '{"b": 1, "a": "é"}', "response_format.json_schema.schema"),
    ),
    ({"guided_json": {"b": {}, "a": 1}}, "constraint", Constraint("json_schema", '{"b": {}, "a": 1}', "guided_json")),
    ({"guided_json": '{"type":"null"}'}, "constraint", Constraint("json_schema", '{"type":"null"}', "guided_json")),
    ({"response_format": {"type": "json_object", "schema": {"enum": [1]}}}, "constraint", Constraint("json_schema", '{"enum": [1]}', "response_format.schema")),
    ({"response_format": {"type": "json_object", "schema": None}}, "constraint", Constraint("json_object", "", "response_format")),
    ({"guided_choice": ["a", '"']}, "constraint", Constraint("choice", '["a", "\\""]', "guided_choice")),
    ({"guided_grammar": "start: X"}, "constraint", Constraint("lark", "start: X", "guided_grammar")),
    ({"response_format": {"type": "text"}}, "sampling", SamplingParams()),
    ({"tools": []}, "tools", ()),
    ({"tools": [TOOL]}, "tools", (ToolSpec("f", param="tools[0].function.parameters"),)),
    (
        {"tools": [{"type": "function", "function": {"name": "a.b-c", "description": "d", "parameters": {"type": "object"}, "strict": True}}]},
        "tools",
        (ToolSpec("a.b-c", "d", {"type": "object"}, True, "tools[0].function.parameters"),),
    ),
    ({"tools": [], "tool_choice": "auto"}, "tool_choice", ToolChoice("auto")),
    ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice", ToolChoice("none")),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", ToolChoice("required")),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", ToolChoice("required", ("f",))),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}},
        "tool_choice",
        ToolChoice("auto", ("f",)),
    ),
    ({"tool_choice": "none"}, "tool_choice", ToolChoice("none")),
    ({"modalities": ["text"]}, "tools", ()),
    ({"reasoning_effort": "low"}, "reasoning", Reasoning(effort="low")),
    ({"thinking_budget": 7}, "reasoning", Reasoning(budget_tokens=7)),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "reasoning", Reasoning(enabled=False)),
    ({"ignore_eos": True, "max_tokens": 2, "tools": [TOOL], "tool_choice": "none"}, "ignore_eos", True),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
    ({"user": "ann"}, "user", "ann"),
    ({"service_tier": "flex"}, "priority", "background"),
    ({"service_tier": "priority"}, "priority", "normal"),
    ({"service_tier": "auto"}, "priority", "normal"),
    ({"model": "x/y"}, "model", "x/y"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name", "value"), PARSED)
def test_what_a_field_becomes(fields: dict[str, Any], name: str, value: Any) -> None:
    found: Any = parse(**fields)
    for step in name.split("."):
        found = getattr(found, step)
    assert found == value
    assert type(found) is type(value)


def test_a_request_of_only_what_is_required() -> None:
    request = parse()
    assert request == Request(id="chatcmpl-1", model="m", messages=request.messages)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_known_fields_that_are_not_served(name: str) -> None:
    error = refusal(body(**{name: UNSUPPORTED[name]}))
    assert (error.code, error.param) == ("unsupported_value", name)
    assert f"'{name}'" in error.message
    assert error.remedy
    parse(**{name: None})


@pytest.mark.parametrize("name", IGNORED)
def test_harmless_fields_make_no_difference(name: str) -> None:
    assert parse(**{name: IGNORED[name]}) == parse()


def test_the_schema_and_these_tests_know_the_same_fields() -> None:
    table = field_table("openai-chat-request")
    assert set(table.unsupported) == set(UNSUPPORTED)
    assert table.ignored == set(IGNORED)
    covered = {name for fields, *_ in BROKEN for name in fields} & {
        name for fields, *_ in PARSED for name in fields
    }
    assert table.known - table.ignored - set(table.unsupported) - covered <= {"messages"}


def test_the_official_client_can_send_nothing_unknown() -> None:
    """Each parameter of the client's own signature is in the table, one way or another."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    assert set(CompletionCreateParamsBase.__annotations__) - field_table("openai-chat-request").known == set()


def test_unknown_fields_are_named_sorted_and_clipped() -> None:
    error = refusal(body(zeta=1, alpha=2))
    assert (error.code, error.param) == ("unknown_parameter", "alpha")
    assert error.message == "Unknown parameters: 'alpha', 'zeta'."
    many = refusal(body(**{f"x{i}": 1 for i in range(20)}))
    assert many.message.count("'x") == 8
    assert "and 12 more" in many.message
    long = refusal(body(**{"y" * 10_000: 1}))
    assert len(long.message) < 100
    parse(zeta=None, alpha=None)


def test_the_sweep_comes_before_types_and_unsupported_before_unknown() -> None:
    assert refusal(body(temperature="x", unknown=1)).code == "unknown_parameter"
    assert refusal(body(temperature="x", unknown=1, audio={})).code == "unsupported_value"
    assert refusal(body(messages=7, audio={}, functions=[])).param == "audio"


def test_the_first_thing_wrong_is_reported() -> None:
    wrong = {"role": "user", "content": 7}
    assert refusal(body(messages=[USER, wrong], temperature=9)).param == "messages[1].content"
    assert refusal(body(temperature=9, top_p=9)).param == "temperature"


def test_a_body_that_is_wrong_everywhere_is_refused_at_its_first_flaw() -> None:
    error = refusal(body(messages=[[]] * 150_000))
    assert error.param == "messages[0]"


def test_the_schema_is_one() -> None:
    """By the reference implementation, and its own examples fit it."""
    import jsonschema

    document = dict(schema("openai-chat-request"))
    jsonschema.Draft202012Validator.check_schema(document)
    assert jsonschema.Draft202012Validator(document).is_valid({"model": "m", "messages": [USER]})


def test_errors_are_of_one_kind() -> None:
    assert isinstance(refusal(body(n=0)), InvalidRequest)
