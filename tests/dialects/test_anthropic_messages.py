"""Turns, blocks, results and beginnings of answers: what a conversation in this dialect means."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.conversation import Message, TextPart, ToolCall
from support.anthropic_requests import CALLING, USE, USER, parse, refusal, result


def said(role: Any, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),) if text else (), **more)


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


CALL = ToolCall("toolu_1", "f", '{"b":1,"a":"é"}')
CALLED = said("assistant", "Let me see.", tool_calls=(CALL,))


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief.", cache_control={"type": "ephemeral", "ttl": "1h"})], "Be brief."),
        ([text("You are it."), text("Be brief.")], "You are it.\nBe brief."),
        ([text("You are it.\n"), text("Be brief."), text("\nNow.")], "You are it.\nBe brief.\nNow."),
        ([text("")], None),
        ([], None),
        ("", None),
    ],
)
def test_the_system_prompt_is_text_or_blocks(system: Any, expected: str | None) -> None:
    before = () if expected is None else (said("system", expected),)
    assert parse(system=system).messages == (*before, said("user", "Hi"))


def test_turns_of_one_role_in_a_row_are_one() -> None:
    turns = [
        user(text("a"), text("b")),
        {"role": "user", "content": "c"},
        assistant(text("d ")),
        assistant(text("e"), USE),
        user(result()),
        {"role": "user", "content": "f"},
        {"role": "system", "content": "g"},
        {"role": "system", "content": [text("h")]},
        {"role": "user", "content": "i"},
    ]
    assert parse(messages=turns).messages == (
        said("user", "a\nb\nc"),
        said("assistant", "d e", tool_calls=(CALL,)),
        said("tool", "done", tool_call_id="toolu_1"),
        said("user", "f"),
        said("system", "g\nh"),
        said("user", "i"),
    )


def test_several_results_in_one_turn_keep_their_order_and_the_text_after_them() -> None:
    second = {**USE, "id": "toolu_2", "input": {}}
    turns = [
        USER,
        assistant(USE, second),
        user(result("2", "toolu_2"), result("1"), text("And now?")),
    ]
    assert parse(messages=turns).messages == (
        said("user", "Hi"),
        said("assistant", "", tool_calls=(CALL, ToolCall("toolu_2", "f", "{}"))),
        said("tool", "2", tool_call_id="toolu_2"),
        said("tool", "1", tool_call_id="toolu_1"),
        said("user", "And now?"),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (result("done"), "done"),
        (result([text("a"), text("b\n"), text("c")]), "a\nb\nc"),
        (result(None), ""),
        ({"type": "tool_result", "tool_use_id": "toolu_1"}, ""),
        (result([]), ""),
        (result("no such file", is_error=True), "Error: no such file"),
        (result("Error: no such file", is_error=True), "Error: no such file"),
        (
            result("<tool_use_error>no such file</tool_use_error>", is_error=True),
            "<tool_use_error>no such file</tool_use_error>",
        ),
        (result([text("boom")], is_error=True), "Error: boom"),
        (result("fine", is_error=False), "fine"),
        (
            result([{"type": "search_result", "source": "https://a.example", "title": "T", "content": [text("x")]}]),
            "T\nhttps://a.example\nx",
        ),
        (result([{"type": "tool_reference", "tool_name": "look_up"}]), "look_up"),
    ],
)  # fmt: skip
def test_what_a_result_holds(given: Any, expected: str) -> None:
    last = parse(messages=[USER, CALLING, user(given)]).messages[-1]
    assert last == said("tool", expected, tool_call_id="toolu_1")


def test_documents_whose_text_is_there_are_text() -> None:
    turn = user(
        {
            "type": "document",
            "title": "Notes",
            "context": None,
            "source": {"type": "text", "media_type": "text/plain", "data": "one"},
            "citations": {"enabled": False},
        },
        {"type": "document", "source": {"type": "content", "content": [text("two")]}},
        text("Compare."),
    )
    assert parse(messages=[turn]).messages == (said("user", "Notes\none\ntwo\nCompare."),)


def test_thinking_in_the_history_is_the_turn_s_reasoning() -> None:
    turns = [
        USER,
        assistant(
            {"type": "thinking", "thinking": "Hm.", "signature": "anyone's"},
            {"type": "redacted_thinking", "data": "secret"},
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking", "thinking": "So."},
            USE,
        ),
        user(result()),
    ]
    assert parse(messages=turns).messages[1] == said(
        "assistant", "", tool_calls=(CALL,), reasoning="Hm.\nSo."
    )


def test_calls_may_stay_open_and_ids_come_again_once_answered() -> None:
    turns = [USER, CALLING, user(result()), CALLING, {"role": "user", "content": "Stop."}]
    assert [m.role for m in parse(messages=turns).messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    ("last", "continues", "expected"),
    [
        ({"role": "assistant", "content": "The answer is ("}, True, said("assistant", "The answer is (")),
        (assistant(text("{")), True, said("assistant", "{")),
        (
            assistant({"type": "thinking", "thinking": "Hm."}, text("So ")),
            True,
            said("assistant", "So ", reasoning="Hm."),
        ),
        ({"role": "assistant", "content": ""}, False, said("user", "Hi")),
        (assistant(), False, said("user", "Hi")),
    ],
)
def test_a_last_turn_of_the_assistant_is_the_beginning_of_the_answer(
    last: Any, continues: bool, expected: Message
) -> None:
    request = parse(messages=[USER, last])
    assert request.continues is continues
    assert request.messages[-1] == expected


@pytest.mark.parametrize(
    ("turns", "code", "param"),
    [
        ([], "invalid_value", "messages"),
        ([{"role": "tool", "content": "x"}], "invalid_message", "messages[0].role"),
        ([{"role": "user"}], "invalid_message", "messages[0].content"),
        ([{"role": "user", "content": None}], "invalid_message", "messages[0].content"),
        ([user({"text": "x"})], "invalid_message", "messages[0].content[0].type"),
        ([user(text("x"), {"type": "text"})], "invalid_message", "messages[0].content[1].text"),
        (
            [user(text("x"), {"type": "image", "source": {"type": "base64"}})],
            "unsupported_content",
            "messages[0].content[1].type",
        ),
        (
            [USER, CALLING, user(result([text("x"), {"type": "image"}]))],
            "unsupported_content",
            "messages[2].content[0].content[1].type",
        ),
        (
            [user({"type": "document", "source": {"type": "base64", "data": ""}})],
            "unsupported_content",
            "messages[0].content[0].source.type",
        ),
        (
            [user({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}})],
            "unsupported_content",
            "messages[0].content[0].source.content[0].type",
        ),
        (
            [user({"type": "document", "source": {"type": "text", "data": ""}, "citations": {"enabled": True}})],
            "invalid_message",
            "messages[0].content[0].citations.enabled",
        ),
        ([user(USE)], "unsupported_content", "messages[0].content[0].type"),
        ([assistant(result())], "unsupported_content", "messages[0].content[0].type"),
        ([assistant({"type": "server_tool_use"})], "unsupported_content", "messages[0].content[0].type"),
        ([{"role": "system", "content": [{"type": "image"}]}, USER], "unsupported_content", "messages[0].content[0].type"),
        ([user(result())], "invalid_tool_result", "messages[0].content[0].tool_use_id"),
        (
            [USER, CALLING, user(result(), result())],
            "invalid_tool_result",
            "messages[2].content[1].tool_use_id",
        ),
        ([USER, assistant(USE, USE)], "invalid_message", "messages[1].content[1].id"),
        ([USER, assistant({**USE, "input": "{}"})], "invalid_message", "messages[1].content[0].input"),
        ([USER, CALLING], "invalid_message", "messages[1]"),
        ([USER, assistant({"type": "thinking", "thinking": "Hm."})], "invalid_message", "messages[1]"),
        ([assistant()], "invalid_message", "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_path(turns: Any, code: str, param: str) -> None:
    found = refusal(messages=turns)
    assert (found.code, found.param) == (code, param)
