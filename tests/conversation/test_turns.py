"""Turns that come back: known by what they mean, whatever form the client gives them."""

from __future__ import annotations

from typing import Any

from stretto.conversation import Caller, History, Message, RecentTurns, Request, TextPart, ToolCall, ToolSpec
from support.conversation_tokens import message, request

USER = message("user", "Hi")
TOOL = ToolSpec("f", "d", {"type": "object", "properties": {"a": {}, "b": {}}})


def calling(arguments: str, text: str = "Look.", call_id: str = "c1", **more: Any) -> Message:
    content = (TextPart(text),) if text else ()
    return Message("assistant", content, tool_calls=(ToolCall(call_id, "f", arguments),), **more)


def history_of(*messages: Message, **more: Any) -> History:
    asked = request(*messages, **more)
    return History.of(asked, asked.messages, asked.template_kwargs)


def test_a_turn_is_known_by_what_it_means() -> None:
    turns = RecentTurns()
    key = history_of(USER, tools=(TOOL,)).answered("Look.\n", [("f", '{"a": 1, "b": [2]}')])
    turns.keep(key, [1, 2], [3, 4])

    def found(*messages: Message, **more: Any) -> tuple[int, list[int]] | None:
        latest = turns.latest(history_of(*messages, **{"tools": (TOOL,), **more}), messages)
        return None if latest is None else (latest[0], list(latest[1]))

    back = (1, [1, 2, 3, 4])
    assert found(USER, calling('{"a": 1, "b": [2]}')) == back
    assert found(USER, calling('{"b":[2],"a":1}', text=" Look. ", call_id="other")) == back
    assert found(USER, calling('{"a": 1, "b": [2]}', reasoning="Hm")) == back
    answer = message("tool", "x", tool_call_id="c1")
    assert found(USER, calling('{"a": 1, "b": [2]}'), answer, USER) == back
    # Anything else is another conversation.
    assert found(USER, calling('{"a": 1, "b": [3]}')) is None
    assert found(USER, calling('{"a": 1, "b": [2]}', text="")) is None
    assert found(message("user", "Ho"), calling('{"a": 1, "b": [2]}')) is None
    assert found(message("system", "x"), USER, calling('{"a": 1, "b": [2]}')) is None
    assert found(USER, calling('{"a": 1, "b": [2]}'), tools=()) is None
    assert found(USER, calling('{"a": 1, "b": [2]}'), template_kwargs={"x": 1}) is None
    assert found(USER, calling('{"a": 1, "b": [2]}'), caller=Caller(tenant="other")) is None


def test_the_last_turn_counts() -> None:
    turns = RecentTurns()
    first = history_of(USER)
    turns.keep(first.answered("one", []), [1], [2])
    second = history_of(USER, message("assistant", "one"), USER)
    turns.keep(second.answered("two", []), [1, 2, 3], [4])
    messages = (USER, message("assistant", "one"), USER, message("assistant", "two"), USER)
    found = turns.latest(history_of(*messages), messages)
    assert found is not None
    assert (found[0], list(found[1])) == (3, [1, 2, 3, 4])
    edited = (*messages[:3], message("assistant", "2"), USER)
    found = turns.latest(history_of(*edited), edited)
    assert found is not None
    assert (found[0], list(found[1])) == (1, [1, 2])


def test_results_belong_to_calls_by_their_order_not_their_ids() -> None:
    def history(first: str, second: str, answers: tuple[str, str]) -> History:
        both = Message("assistant", (), tool_calls=(ToolCall(first, "f", "{}"), ToolCall(second, "f", "{}")))
        results = [message("tool", "x", tool_call_id=answer) for answer in answers]
        return history_of(USER, both, *results)

    assert history("a", "b", ("a", "b")).keys == history("c", "d", ("c", "d")).keys
    assert history("a", "b", ("a", "b")).keys != history("a", "b", ("b", "a")).keys


def test_what_is_kept_is_bounded() -> None:
    turns = RecentTurns(most_turns=2, most_tokens=10)
    for index in range(3):
        turns.keep(bytes([index]), [1], [2])
    assert turns.stats() == {"turns": 2, "tokens": 4, "replayed_total": 0}
    turns.keep(b"long", [1] * 8, [1])
    assert turns.stats() == {"turns": 1, "tokens": 9, "replayed_total": 0}
    turns.keep(b"longer", [1] * 11, [])
    turns.keep(b"long", [1] * 3, [1])
    assert turns.stats() == {"turns": 1, "tokens": 4, "replayed_total": 0}


def test_a_request_without_messages_has_a_beginning() -> None:
    assert len(History.of(Request("r", "m", ()), (), {}).keys) == 1
