"""What a model's template says about its answers, and what that makes of a request."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoTokenizer
from stretto.conversation import (
    AnswerFormat,
    ChatTemplate,
    Message,
    Reasoning,
    TextPart,
    ToolCall,
    ToolChoice,
    encode_chat,
)
from support.conversation_calls import CLOCK, TOOLS, WEATHER
from support.conversation_templates import TOOLS as HERMES_TEMPLATE
from support.conversation_tokens import CharTokenizer, message, request

USER = message("user", "Hi")
CALLING = Message("assistant", (TextPart("Look."),), tool_calls=(ToolCall("call_1", "clock", '{"a": 1}'),))
RESULT = message("tool", "noon", tool_call_id="call_1")


def form_of(source: str, dialect: str = "auto", special: tuple[str, ...] = ()) -> AnswerFormat:
    return AnswerFormat.of(ChatTemplate(source), CharTokenizer(special), dialect)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "dialect", "reasoning"),
    [
        (ECHO_CHAT_TEMPLATE, "json", None),
        (HERMES_TEMPLATE, "hermes", "think"),
        ("{{ tools }}<tool_call><function=x><parameter=y>", "qwen3-coder", None),
        ('{{ tools }}<|eot_id|>"parameters": <|python_tag|>', "llama3", None),
        ("{{ tools }}[TOOL_CALLS][", "mistral", None),
        ("{{ tools }}[TOOL_CALLS]name[ARGS][THINK]", "mistral-args", "mistral"),
        ("{{ tools }}<|tool_call>call:<|channel>", "gemma4", "gemma4"),
        ("{{ tools }}<｜tool▁calls▁begin｜>```json", "deepseek", None),
        ("{{ tools }}<｜tool▁calls▁begin｜></think>", "deepseek-v31", "think"),
        ("{{ tools }}<calls>", "json", None),
        ("<tool_call> without the tools", "json", None),
        ("<|channel|>analysis", "json", "harmony"),
    ],
)
def test_a_template_shows_its_dialect(source: str, dialect: str, reasoning: str | None) -> None:
    form = form_of(source)
    assert form.dialect.name == dialect
    assert (form.reasoning.name if form.reasoning else None) == reasoning


def test_the_dialect_can_be_named() -> None:
    assert form_of(HERMES_TEMPLATE, "mistral").dialect.name == "mistral"


def test_marks_that_are_control_tokens() -> None:
    special = ("[TOOL_CALLS]", "[ARGS]", "</s>")
    form = form_of("{{ tools }}[TOOL_CALLS][ARGS]", special=special)
    assert sorted(form.marks.values()) == ["[ARGS]", "[TOOL_CALLS]"]


def test_tokens_inside_a_mark_of_reasoning_do_not_end_the_answer() -> None:
    tokenizer: Any = CharTokenizer(("<|end|>", "<|return|>"))
    tokenizer.end_ids = frozenset({tokenizer.id_of("<|end|>"), tokenizer.id_of("<|return|>")})
    form = AnswerFormat.of(ChatTemplate("<|channel|>analysis"), tokenizer)
    assert form.end_ids(tokenizer) == {tokenizer.id_of("<|return|>")}


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    form = form_of(ECHO_CHAT_TEMPLATE)
    seen = form.prepared(request(USER, CALLING, RESULT, RESULT, USER, tools=TOOLS))
    assert seen.tools == ()
    system, _, calling, results, last = seen.messages
    assert system.role == "system"
    assert '"name": "get_weather"' in system.text
    assert '"name": "clock"' in system.text
    assert calling.text == 'Look.\n<tool_call>\n{"name": "clock", "arguments": {"a": 1}}\n</tool_call>'
    assert calling.tool_calls == ()
    assert results.role == "user"
    assert results.text == "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert last == USER
    own = form.prepared(request(message("system", "Be kind."), USER, tools=TOOLS)).messages[0]
    assert own.text.startswith("Be kind.\n\n")
    none = form.prepared(request(USER, CALLING, RESULT, tools=TOOLS, tool_choice=ToolChoice("none")))
    assert [m.role for m in none.messages] == ["user", "assistant", "user"]


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    asked = request(USER, CALLING, RESULT, tools=TOOLS)
    seen = form_of(HERMES_TEMPLATE).prepared(asked)
    assert (seen.messages, seen.tools) == (asked.messages, asked.tools)
    only = form_of(HERMES_TEMPLATE).prepared(
        request(USER, tools=TOOLS, tool_choice=ToolChoice("auto", ("clock",)))
    )
    assert only.tools == (WEATHER, CLOCK)  # what may be called is another matter


def test_ids_are_shortened_alike_where_a_template_insists() -> None:
    seen = form_of("{{ tools }}[TOOL_CALLS]").prepared(request(USER, CALLING, RESULT))
    call_id = seen.messages[1].tool_calls[0].id
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert seen.messages[2].tool_call_id == call_id


def test_wishes_about_reasoning_reach_the_variables_that_are_read() -> None:
    def variables(source: str, **more: Any) -> dict[str, Any]:
        return dict(form_of(source).prepared(request(USER, **more)).template_kwargs)

    switch = "{{ enable_thinking }}"
    assert variables(switch) == {}
    assert variables(switch, reasoning=Reasoning(enabled=False)) == {"enable_thinking": False}
    assert variables(switch, reasoning=Reasoning(effort="none")) == {"enable_thinking": False}
    assert variables(switch, reasoning=Reasoning(effort="high")) == {"enable_thinking": True}
    assert variables(switch, reasoning=Reasoning(budget_tokens=9)) == {"enable_thinking": True}
    assert variables("{{ thinking }}", reasoning=Reasoning(enabled=True)) == {"thinking": True}
    both = "{{ reasoning_effort }}{{ thinking_budget }}"
    assert variables(both, reasoning=Reasoning(effort="low", budget_tokens=5)) == {
        "reasoning_effort": "low",
        "thinking_budget": 5,
    }
    assert variables("plain", reasoning=Reasoning(enabled=True, effort="low", budget_tokens=5)) == {}
    own = {"enable_thinking": True}
    assert variables(switch, reasoning=Reasoning(enabled=False), template_kwargs=own) == own


@pytest.mark.parametrize(
    ("source", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "none"),
        ("<|im_start|>assistant\n", "possible"),
    ],
)
def test_where_the_prompt_leaves_the_reasoning(source: str, opens: str) -> None:
    template = ChatTemplate(source + "{# </think> #}")
    form = AnswerFormat.of(template, EchoTokenizer())
    ids = encode_chat(template, EchoTokenizer(), request(USER))
    assert form.thinking_after(ids, EchoTokenizer()) == opens


def test_changing_lines_of_clients_are_taken_out() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=0a1b2;"
    form = form_of(ECHO_CHAT_TEMPLATE)
    parts = (TextPart(line), TextPart("You are Claude Code."))

    def seen(*messages: Message) -> tuple[Message, ...]:
        return form.prepared(request(*messages)).messages

    assert seen(Message("system", parts), USER) == (Message("system", parts[1:]), USER)
    assert seen(Message("system", (TextPart(line),)), USER) == (USER,)
    assert seen(Message("system", (TextPart(f"{line}\nRest"),)), USER)[0].text == "Rest"
    for kept in (Message("system", (TextPart(f"About {line}"),)), Message("user", parts)):
        assert seen(kept) == (kept,)
