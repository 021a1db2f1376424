"""Calls of functions and reasoning through the whole daemon, by the official ``openai`` package. The echo model says what the user said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from support.daemon import ECHO, RunningDaemon, running
from support.wire_answers import steady

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY},
    },
    {"type": "function", "function": {"name": "clock"}},
]
SCHEMAS = {"get_weather": CITY, "clock": {"type": "object"}}
NAMED: Any = {"type": "function", "function": {"name": "clock"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "London"}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
# Draws end soon where anything goes: quotes and braces are likely.
ENDING = {"34": 9, "125": 9, "258": 12}

THINKING_TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' }}{{ tools | tojson }}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def thinking_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    directory = tmp_path_factory.mktemp("thinking")
    template = directory / "template.jinja"
    template.write_text(THINKING_TEMPLATE)
    with running(directory, *ECHO, "--chat-template", str(template)) as daemon:
        yield daemon


def client_of(daemon: RunningDaemon) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0)


def ask(client: openai.OpenAI, says: str, *, stream: bool = False, **fields: Any) -> Any:
    """The completion of a model that wants to say this; streamed ones as the package puts them together."""
    asked: dict[str, Any] = {
        "model": "echo", "messages": [{"role": "user", "content": says}], "tools": TOOLS, "temperature": 0, **fields,
    }  # fmt: skip
    if not stream:
        return client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as chunks:
        return chunks.get_final_completion()


def calls_of(reply: Any) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in reply.choices[0].message.tool_calls or []
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("says", [f"I look.\n{CALL}", "No need of that."], ids=["wants", "does not want"])
@pytest.mark.parametrize(
    "choice",
    ["auto", "none", "required", NAMED, ALLOWED],
    ids=["auto", "none", "required", "named", "allowed"],
)
def test_the_choice_and_the_body_and_the_reason_agree(
    echo_daemon: RunningDaemon, choice: Any, says: str, stream: bool
) -> None:
    with client_of(echo_daemon) as client:
        reply = ask(
            client, says, tool_choice=choice, stream=stream, logit_bias=ENDING if choice != "none" else None
        )
    calls = calls_of(reply)
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    answer = reply.choices[0]
    assert (answer.finish_reason == "tool_calls") is bool(calls)
    if choice == "none" or (choice == "auto" and CALL not in says):
        assert (answer.finish_reason, answer.message.content, calls) == ("stop", says, [])
    elif choice == "auto":
        assert answer.message.content == "I look."
        assert calls == [("get_weather", {"city": "London"})]
    else:
        assert answer.message.content is None
        assert calls
        assert {name for name, _ in calls} <= ({"clock"} if choice in (NAMED, ALLOWED) else set(SCHEMAS))


def test_streams_and_whole_replies_agree_field_by_field(echo_daemon: RunningDaemon) -> None:
    with client_of(echo_daemon) as client:
        whole, streamed = (ask(client, f"Both.\n{CALL}\n{CLOCK}", stream=stream) for stream in (False, True))
    for reply in (whole, streamed):
        calls = reply.choices[0].message.tool_calls
        assert len({call.id for call in calls}) == 2
        assert all(call.id.startswith("call_") and call.type == "function" for call in calls)
    assert calls_of(whole) == calls_of(streamed) == [("get_weather", {"city": "London"}), ("clock", {})]
    assert whole.choices[0].message.content == streamed.choices[0].message.content == "Both."
    ours, theirs = (steady(reply.usage.model_dump()) for reply in (whole, streamed))
    for usage in (ours, theirs):
        usage.pop("prompt_tokens_details")  # the second request finds the first one's prompt
    assert ours == theirs


def test_one_call_at_a_time_if_asked(echo_daemon: RunningDaemon) -> None:
    with client_of(echo_daemon) as client:
        assert len(calls_of(ask(client, f"{CLOCK}\n{CLOCK}"))) == 2
        forced: list[dict[str, Any]] = [
            {"parallel_tool_calls": False},
            {"parallel_tool_calls": False, "tool_choice": "required"},
            {"tool_choice": NAMED},  # one function is named, which is one call
            {"tool_choice": ALLOWED},
        ]
        for fields in forced:
            for stream in (False, True):
                reply = ask(client, f"{CLOCK}\n{CLOCK}", stream=stream, **fields)
                assert calls_of(reply) == [("clock", {})]
                assert reply.choices[0].finish_reason == "tool_calls"
                # Right behind the call, and not at the limit.
                assert reply.usage.completion_tokens <= len(CLOCK) + 2
        assert len(calls_of(ask(client, f"{CLOCK}\n{CLOCK}", tool_choice="required"))) == 2


def test_a_conversation_with_results(echo_daemon: RunningDaemon) -> None:
    with client_of(echo_daemon) as client:
        first = ask(client, f"I look.\n{CALL}")
        call = first.choices[0].message.tool_calls[0]
        second = client.chat.completions.create(
            model="echo",
            tools=TOOLS,
            messages=[
                {"role": "user", "content": f"I look.\n{CALL}"},
                first.choices[0].message.to_dict(),  # type: ignore[list-item]  # what the package itself sends back
                {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
                {"role": "user", "content": "Thanks."},
            ],
        )
    assert second.choices[0].message.content == "Thanks."
    assert second.choices[0].finish_reason == "stop"


def test_arguments_are_read_into_models(echo_daemon: RunningDaemon) -> None:
    class GetWeather(BaseModel):
        city: str
        days: int | None = None

    with client_of(echo_daemon) as client:
        reply = client.chat.completions.parse(
            model="echo",
            messages=[{"role": "user", "content": CALL.replace("get_weather", "GetWeather")}],
            tools=[openai.pydantic_function_tool(GetWeather)],
            tool_choice="required",
            temperature=0,
            extra_body={"logit_bias": ENDING},
        )
    calls = reply.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, GetWeather)


def test_a_cut_off_call_has_the_arguments_there_were(echo_daemon: RunningDaemon) -> None:
    said = CALL.index("Lon") + 3
    with client_of(echo_daemon) as client:
        for stream in (False, True):
            if stream:
                with pytest.raises(openai.LengthFinishReasonError) as caught:
                    ask(client, CALL, max_tokens=said, stream=True)
                reply = caught.value.completion
            else:
                reply = ask(client, CALL, max_tokens=said)
            assert reply.choices[0].finish_reason == "length"
            [call] = reply.choices[0].message.tool_calls
            assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Lon')
            assert reply.usage.completion_tokens == said


def test_schemas_that_can_never_be_honoured(echo_daemon: RunningDaemon) -> None:
    tools: Any = [*TOOLS, {"type": "function", "function": {"name": "bad", "parameters": {"type": "array"}}}]
    with client_of(echo_daemon) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, "x", tools=tools, stream=stream)
            assert (caught.value.code, caught.value.param) == (
                "invalid_tool_schema",
                "tools[2].function.parameters.type",
            )
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "x", extra_body={"functions": [], "function_call": "auto"})
        assert caught.value.code == "unsupported_value"
        assert "tool_choice" in str(caught.value.body)
        assert ask(client, "x").choices[0].message.content == "x"


def test_reasoning_is_kept_apart(thinking_daemon: RunningDaemon) -> None:
    says = f"<think>\nHm, 1 < 2.\n</think>\n\nI look.\n{CALL}"
    with client_of(thinking_daemon) as client:
        for stream in (False, True):
            reply = ask(client, says, stream=stream)
            message = reply.choices[0].message
            assert (message.content, calls_of(reply)) == ("I look.", [("get_weather", {"city": "London"})])
            assert message.reasoning_content == "Hm, 1 < 2."
            assert reply.usage.completion_tokens_details.reasoning_tokens == says.index("\n\nI look")
        deltas = [
            getattr(chunk.choices[0].delta, "reasoning_content", None)
            for chunk in client.chat.completions.create(
                model="echo", messages=[{"role": "user", "content": says}], stream=True
            )
        ]
    assert "".join(filter(None, deltas)) == "Hm, 1 < 2."


def test_reasoning_can_be_limited_and_switched_off(thinking_daemon: RunningDaemon) -> None:
    says = "<think>0123456789</think>So."
    with client_of(thinking_daemon) as client:
        reply = ask(client, says, extra_body={"thinking_budget": 4})
        assert reply.choices[0].message.reasoning_content == "0123"
        assert reply.usage.completion_tokens_details.reasoning_tokens == len("<think>0123</think>")
        plain = ask(client, "So.", tools=[])
        off = ask(client, "So.", tools=[], reasoning_effort="none")
        # The template writes that the reasoning is over.
        assert off.usage.prompt_tokens == plain.usage.prompt_tokens + len("<think>\n\n</think>\n\n")
        forced = ask(client, says, reasoning_effort="none").choices[0].message
        assert getattr(forced, "reasoning_content", None) is None


def test_structured_text_and_required_calls_come_after_the_reasoning(thinking_daemon: RunningDaemon) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with client_of(thinking_daemon) as client:
        reply = ask(client, '<think>\nWhat now?\n</think>\n\n{"a": 7}', tools=[], response_format=form)
        assert reply.choices[0].message.content == '{"a": 7}'
        assert reply.choices[0].message.reasoning_content == "What now?"
        reply = ask(client, f"<think>\nWhat now?\n</think>\n\n{CALL}", tool_choice="required")
        assert calls_of(reply) == [("get_weather", {"city": "London"})]
        assert reply.choices[0].message.reasoning_content == "What now?"
        # With functions beside it, the text may still be of the form, and calls may still be made.
        for says in ('<think>a</think>{"a": 7}', f"<think>a</think>{CALL}"):
            reply = ask(client, says, response_format=form)
            message = reply.choices[0].message
            assert (message.content == '{"a": 7}') is (not message.tool_calls)


def test_the_dialect_can_be_chosen(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, "--tool-dialect", "llama3") as daemon, client_of(daemon) as client:
        reply = ask(client, '{"name": "clock", "parameters": {}}')
    assert calls_of(reply) == [("clock", {})]
