"""Requests for responses: items as messages, tools as functions, and every refusal with its path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.conversation import (
    Constraint,
    Message,
    Reasoning,
    Request,
    SamplingParams,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from stretto.dialects.fields import field_table
from stretto.dialects.openai_errors import error_body
from stretto.dialects.openai_responses import RESPONSES_SCHEMA, parse_responses
from stretto.dialects.openai_responses_items import open_reasoning, seal_reasoning
from stretto.errors import InvalidRequest
from support.dialect_fuzz import ANYTHING, mutated

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}  # fmt: skip
PLAIN = {"type": "function", "name": "g"}
SPEC, PLAIN_SPEC = ToolSpec("f", "d", {"type": "object"}, strict=True), ToolSpec("g")
NAMESPACE = {"type": "namespace", "name": "files", "description": "n", "tools": [FUNCTION, {"type": "custom", "name": "x"}]}  # fmt: skip


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "Hi", **fields}).encode()


def parse(**fields: Any) -> Request:
    return parse_responses(body(**fields), request_id="resp_1")


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def said(role: Any, *texts: str, **more: Any) -> Message:
    return Message(role, tuple(map(TextPart, texts)), **more)


# Items -----------------------------------------------------------------------------------------------------------------

ITEMS: list[tuple[Any, list[Message]]] = [
    ("Hi", [said("user", "Hi")]),
    ([{"role": "user", "content": "Hi"}], [said("user", "Hi")]),
    (
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}], "id": "x"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}, {"type": "refusal", "refusal": "d"}], "phase": "final_answer"},
            {"role": "assistant", "content": "e"},
        ],
        [said("user", "a", "b"), said("assistant", "c", "d"), said("assistant", "e")],
    ),
    ([{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}, {"role": "system", "content": "d"}],
     [said("system", "a", "\n\n", "b"), said("user", "c"), said("system", "d")]),
    ([CALL, OUTPUT], [said("assistant", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)), said("tool", "42", tool_call_id="c1")]),
    (
        [
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"role": "assistant", "content": "Let me see."},
            CALL,
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "And."}]},
            {**CALL, "call_id": "c2", "arguments": ""},
            {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "7"}]},
            OUTPUT,
            {"role": "assistant", "content": "Done."},
        ],
        [
            said("assistant", "Let me see.", tool_calls=(ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "f", "")), reasoning="Hm.\nAnd."),
            said("tool", "7", tool_call_id="c2"),
            said("tool", "42", tool_call_id="c1"),
            said("assistant", "Done."),
        ],
    ),
    # Calls that were never answered, and one that was cut off.
    ([CALL, {"role": "user", "content": "x"}], [said("assistant", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)), said("user", "x")]),
    ([{**CALL, "arguments": '{"a', "status": "incomplete"}], [said("assistant", tool_calls=(ToolCall("c1", "f", '{"a'),))]),
    # Reasoning that no turn follows, and reasoning of another server.
    ([{"role": "user", "content": "x"}, {"type": "reasoning", "summary": [{"text": "z"}]}], [said("user", "x")]),
    ([{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, {"role": "assistant", "content": "y"}], [said("assistant", "y")]),
    ([{"type": "reasoning", "summary": [{"text": "short"}], "encrypted_content": seal_reasoning("lang ü")}, {"role": "assistant", "content": "y"}],
     [said("assistant", "y", reasoning="lang ü")]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "messages"), ITEMS)
def test_items_as_messages(source: Any, messages: list[Message]) -> None:
    assert parse(input=source).messages == tuple(messages)


def test_instructions_come_first_and_join_what_the_system_says_then() -> None:
    assert parse(instructions="Be brief.").messages == (said("system", "Be brief."), said("user", "Hi"))
    items = [{"role": "developer", "content": "More."}, {"role": "user", "content": "Hi"}]
    assert parse(instructions="Be brief.", input=items).messages == (
        said("system", "Be brief.", "\n\n", "More."),
        said("user", "Hi"),
    )
    assert parse(instructions="").messages == (said("user", "Hi"),)


def test_sealed_reasoning_opens_again() -> None:
    assert open_reasoning(seal_reasoning("Ünder\n")) == "Ünder\n"
    for foreign in ("", "x", seal_reasoning("x")[:-1], seal_reasoning("") + "!", seal_reasoning("") + "_w=="):
        assert open_reasoning(foreign) in (None, "")


# Fields ----------------------------------------------------------------------------------------------------------------


def test_the_plain_request() -> None:
    request = parse()
    assert (request.id, request.model) == ("resp_1", "m")
    assert request.max_tokens is None
    assert request.logprobs is None
    assert request.tools == ()
    assert request.tool_choice == ToolChoice()
    assert request.parallel_tool_calls
    assert request.reasoning == Reasoning()
    assert request.constraint is None
    assert request.sampling == SamplingParams()
    assert request.priority == "normal"


def test_every_field() -> None:
    request = parse(
        max_output_tokens=5, temperature=0, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.1, presence_penalty=1,
        frequency_penalty=-1, logit_bias={"5": 2}, seed=7, stop="x", stream=True, user="u", parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"}, thinking_budget=50, include=["message.output_text.logprobs"], top_logprobs=2,
        chat_template_kwargs={"a": 1}, text={"verbosity": "medium"}, truncation="disabled", store=True, background=False,
        metadata={"a": "b"}, client_metadata={"x": 1}, prompt_cache_key="k", service_tier="flex", max_tool_calls=3,
        stream_options={"include_obfuscation": False}, safety_identifier="s", previous_response_id=None, conversation=None,
    )  # fmt: skip
    assert request.max_tokens == 5
    assert request.sampling == SamplingParams(0.0, 3, 0.5, 0.1, 1.1, 1.0, -1.0, {5: 2.0}, 7)
    assert request.stop == ("x",)
    assert request.stream
    assert request.user == "u"
    assert not request.parallel_tool_calls
    assert request.reasoning == Reasoning(effort="low", budget_tokens=50)
    assert request.logprobs == 2
    assert request.template_kwargs == {"a": 1}
    assert request.priority == "background"


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 3}, 3), ({"include": []}, None)],
)  # fmt: skip
def test_log_probabilities(fields: dict[str, Any], logprobs: int | None) -> None:
    assert parse(**fields).logprobs == logprobs


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint("json_object", "", "text.format")),
        (
            {"type": "json_schema", "name": "n", "schema": {"b": 1, "a": 2}, "strict": True},
            Constraint("json_schema", '{"b": 1, "a": 2}', "text.format.schema"),
        ),
    ],
)
def test_the_form_of_the_answer(form: Any, constraint: Constraint | None) -> None:
    assert parse(text={"format": form}).constraint == constraint


# Tools -----------------------------------------------------------------------------------------------------------------


def test_functions_are_offered() -> None:
    assert parse(tools=[FUNCTION, PLAIN]).tools == (SPEC, PLAIN_SPEC)


def test_other_tools_are_left_out_beside_functions() -> None:
    web = {"type": "web_search", "external_web_access": False}
    request = parse(tools=[web, FUNCTION, {"type": "custom", "name": "patch"}, PLAIN])
    assert request.tools == (SPEC, PLAIN_SPEC)
    assert request.reflected.fields["tools"] == [  # type: ignore[attr-defined]
        FUNCTION,
        {"description": None, "parameters": None, "strict": False, **PLAIN},
    ]


def test_functions_of_namespaces_have_their_own_names_where_those_are_enough() -> None:
    alone = parse(tools=[NAMESPACE, PLAIN])
    assert [tool.name for tool in alone.tools] == ["f", "g"]
    assert alone.reflected.names.wire == {"f": ("f", "files"), "g": ("g", None)}  # type: ignore[attr-defined]
    shared = parse(
        tools=[NAMESPACE, FUNCTION],
        input=[CALL, OUTPUT, {**CALL, "namespace": "files"}, {**CALL, "call_id": "c2", "namespace": "gone"}],
        tool_choice={"type": "function", "name": "f", "namespace": "files"},
    )
    assert [tool.name for tool in shared.tools] == ["files__f", "f"]
    called = [call.name for message in shared.messages for call in message.tool_calls]
    assert called == ["f", "files__f", "f"]
    assert shared.tool_choice == ToolChoice("required", ("files__f",))


@pytest.mark.parametrize(
    ("choice", "parsed"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "g"}, ToolChoice("required", ("g",))),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}, {"type": "web_search"}]}, ToolChoice("auto", ("g",))),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name} for name in "gfg"]}, ToolChoice("required", ("g", "f"))),
    ],
)  # fmt: skip
def test_the_choice_of_tools(choice: Any, parsed: ToolChoice) -> None:
    assert parse(tools=[FUNCTION, PLAIN], tool_choice=choice).tool_choice == parsed


BROKEN: list[tuple[dict[str, Any], str, str, str]] = [
    ({"input": None}, "missing_parameter", "input", "required"),
    ({"input": []}, "invalid_value", "input", "at least 1"),
    ({"input": [7]}, "invalid_value", "input[0]", "an object"),
    ({"input": [{}]}, "missing_parameter", "input[0].role", "required"),
    ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role", "one of"),
    ({"input": [{"role": "user"}]}, "missing_parameter", "input[0].content", "required"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "missing_parameter", "input[0].content[0].type", "required"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "missing_parameter", "input[0].content[0].text", "required"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "unsupported_content", "input[0].content[0].type", "only text"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_value", "input[0].type", "nothing is stored"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "unsupported_value", "input[0].type", "web_search_call"),
    ({"input": [OUTPUT]}, "invalid_tool_result", "input[0].call_id", "no call"),
    ({"input": [CALL, OUTPUT, OUTPUT]}, "invalid_tool_result", "input[2].call_id", "no call"),
    ({"input": [CALL, CALL]}, "invalid_message", "input[1].call_id", "no answer yet"),
    ({"input": [{**CALL, "arguments": "{x"}]}, "invalid_tool_arguments", "input[0].arguments", "JSON"),
    ({"input": [{**CALL, "arguments": "[]"}]}, "invalid_tool_arguments", "input[0].arguments", "object"),
    ({"input": [{**CALL, "name": ""}]}, "invalid_value", "input[0].name", "at least 1"),
    ({"input": [{"type": "reasoning", "summary": [{}]}]}, "missing_parameter", "input[0].summary[0].text", "required"),
    ({"input": [{"type": "reasoning", "summary": [{"text": "x"}]}]}, "invalid_message", "input", "nothing but reasoning"),
    ({"instructions": ["x"]}, "invalid_value", "instructions", "a string"),
    ({"previous_response_id": "resp_0"}, "unsupported_value", "previous_response_id", "whole conversation in input"),
    ({"conversation": "conv_1"}, "unsupported_value", "conversation", "whole conversation in input"),
    ({"prompt": {"id": "p"}}, "unsupported_value", "prompt", "instructions"),
    ({"background": True}, "unsupported_value", "background", "Leave it out"),
    ({"truncation": "auto"}, "unsupported_value", "truncation", "nothing is ever cut"),
    ({"truncation": "x"}, "invalid_value", "truncation", "one of"),
    ({"text": {"verbosity": "low"}}, "unsupported_value", "text.verbosity", "in a message"),
    ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type", "one of"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "missing_parameter", "text.format.schema", "required"),
    ({"reasoning": {"effort": "much"}}, "invalid_value", "reasoning.effort", "one of"),
    ({"include": ["x"]}, "invalid_value", "include[0]", "one of"),
    ({"metadata": {"a": 1}}, "invalid_value", "metadata.a", "a string"),
    ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens", "at least 1"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type", "Only functions"),
    ({"tools": [{"type": "function"}]}, "missing_parameter", "tools[0].name", "required"),
    ({"tools": [{**FUNCTION, "parameters": []}]}, "invalid_value", "tools[0].parameters", "an object"),
    ({"tools": [PLAIN, FUNCTION, PLAIN]}, "invalid_value", "tools[2].name", "another function"),
    ({"tools": [NAMESPACE, NAMESPACE]}, "invalid_value", "tools[1].tools[0].name", "another function"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "missing_parameter", "tools[0].tools[0].name", "required"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "no functions"),
    ({"tool_choice": "any", "tools": [PLAIN]}, "invalid_value", "tool_choice", "auto"),
    ({"tool_choice": {"type": "function", "name": "h"}, "tools": [PLAIN]}, "invalid_value", "tool_choice.name", "no function"),
    ({"tool_choice": {"type": "function"}, "tools": [PLAIN]}, "invalid_value", "tool_choice.name", "no function"),
    ({"tool_choice": {"type": "web_search"}, "tools": [PLAIN]}, "unsupported_value", "tool_choice.type", "Only functions"),
    ({"tool_choice": {}, "tools": [PLAIN]}, "unsupported_value", "tool_choice.type", "Only functions"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, "tools": [PLAIN]}, "unsupported_value", "tool_choice.tools", "names no function"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [{"type": "mcp"}]}}, "invalid_value", "tool_choice.mode", "one of"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}, "tools": [PLAIN]}, "invalid_value", "tool_choice.tools[0].name", "no function"),
    ({"messages": []}, "unknown_parameter", "messages", "Unknown"),
    ({"max_tokens": 3}, "unknown_parameter", "max_tokens", "Unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "part"), BROKEN)
def test_what_is_wrong(fields: dict[str, Any], code: str, param: str, part: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.param) == (code, param)
    assert part in str(error)


GOOD: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "z"}], "encrypted_content": "x"},
    CALL,
    OUTPUT,
]
KNOWN = st.sampled_from(sorted(field_table(RESPONSES_SCHEMA).known))
BODIES = st.one_of(
    ANYTHING,
    st.dictionaries(KNOWN, ANYTHING, max_size=8),
    st.builds(
        lambda items, tools, choice, more: {"model": "m", "input": items, "tools": tools, "tool_choice": choice, **more},
        mutated(GOOD),
        mutated([FUNCTION, NAMESPACE]),
        mutated({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}),
        st.dictionaries(KNOWN, ANYTHING, max_size=2),
    ),
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(BODIES)
def test_any_json_is_parsed_or_refused(document: Any) -> None:
    try:
        parsed = parse_responses(json.dumps(document).encode(), request_id="resp_1")
    except InvalidRequest as error:
        refused = json.loads(error_body(error))["error"]
        assert refused["type"] == "invalid_request_error"
        assert refused["code"]
        assert len(refused["message"]) < 1000
    else:
        assert parsed.messages
