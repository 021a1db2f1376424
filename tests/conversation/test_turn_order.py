"""Orders of turns that templates refuse or lose, brought into one that they take."""

from __future__ import annotations

import pytest

from stretto.backends.echo import ECHO_CHAT_TEMPLATE
from stretto.conversation import AnswerFormat, ChatTemplate, Message, ToolCall, ToolSpec, encode_chat
from stretto.conversation.turn_order import TurnOrder
from stretto.errors import InvalidRequest
from support.chat_template import THINKING_TOOLS
from support.conversation_templates import BOS, PLAIN, TOOLS
from support.conversation_tokens import CharTokenizer, message, request

# As Mistral's: calls and results apart, the others must alternate, and the system's text stands in the last turn of the user.
STRICT_TOOLS = """{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for m in rest if not (m.role == 'tool' or m.tool_calls) %}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in rest %}
    {%- if m.role == 'user' %}[INST]{{ system + '\\n\\n' if loop.last and system else '' }}{{ m.content }}[/INST]
    {%- elif m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}
    {%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
    {%- elif m.role == 'assistant' %}{{ m.content }}</s>
    {%- else %}{{ raise_exception('Only user, assistant and tool roles') }}{% endif %}
{%- endfor %}"""

# As Gemma 2's: the system has no place, and turns alternate.
NO_SYSTEM = """{{ bos_token }}{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
# Only the first of the system's messages is looked at; a second one is one too many.
ONE_SYSTEM = """{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning') }}{% endif %}
    {{- '<' + m.role + '>' + m.content }}
{%- endfor %}"""
# The system's text is lost without a word.
DEAF = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"

LOOK = ToolSpec("look", "Looks.", {"type": "object"})
CALL = message("assistant", "", tool_calls=(ToolCall("call00001", "look", "{}"),))
RESULT = message("tool", "R", tool_call_id="call00001")
AGENT: tuple[Message, ...] = (
    message("system", "S"),
    message("user", "U1"),
    message("system", "L1"),
    CALL,
    RESULT,
    message("user", "U2"),
    message("system", "L2"),
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ECHO_CHAT_TEMPLATE, TurnOrder()),
        (PLAIN, TurnOrder()),
        (BOS, TurnOrder(late_system=False, twice=False, system=False)),
        (NO_SYSTEM, TurnOrder(late_system=False, twice=False, system=False, system_twice=False)),
        (ONE_SYSTEM, TurnOrder(late_system=False, system_twice=False)),
        (DEAF, TurnOrder(late_system=False, system=False, system_twice=False)),
        (THINKING_TOOLS, TurnOrder(late_system=False, system_twice=False)),
        (TOOLS, TurnOrder(late_system=False, system_twice=False)),
        (STRICT_TOOLS, TurnOrder(late_system=False, twice=False, after_result=False, system_twice=False)),
        ("{{ raise_exception('No.') }}", TurnOrder()),
        ("{{ messages[-1].content }}", TurnOrder(late_system=False, system=False, system_twice=False)),
    ],
)
def test_what_a_template_takes_is_tried(source: str, expected: TurnOrder) -> None:
    assert TurnOrder.of(ChatTemplate(source)) == expected


def test_what_has_its_place_stays_where_it_is() -> None:
    order = TurnOrder()
    assert order.joined(order.without_late_system(AGENT)) == AGENT


def roles_and_texts(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(each.role, each.text) for each in messages]


def test_late_instructions_are_the_user_s() -> None:
    order = TurnOrder(late_system=False)
    assert roles_and_texts(order.joined(order.without_late_system(AGENT))) == [
        ("system", "S"),
        ("user", "U1"),
        ("user", "L1"),
        ("assistant", ""),
        ("tool", "R"),
        ("user", "U2"),
        ("user", "L2"),
    ]


def test_nothing_stands_apart_that_may_not() -> None:
    order = TurnOrder(late_system=False, twice=False, after_result=False)
    assert roles_and_texts(order.joined(order.without_late_system(AGENT))) == [
        ("system", "S"),
        ("user", "U1\n\nL1"),
        ("assistant", ""),
        ("tool", "R\n\nU2\n\nL2"),
    ]


TWO = (message("system", "S1"), message("system", "S2"))
USER, SAID = message("user", "U"), message("assistant", "A")


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (NO_SYSTEM, (message("system", "S"), USER), "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"),
        (NO_SYSTEM, (*TWO, USER, SAID, USER), "<start_of_turn>user\nS1\n\nS2\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"),
        (NO_SYSTEM, (message("system", "S"), SAID, USER), "<start_of_turn>user\nS<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"),
        (NO_SYSTEM, (message("system", "S"),), "<start_of_turn>user\nS<end_of_turn>\n<start_of_turn>model\n"),
        (NO_SYSTEM, (message("system", "S"), USER, message("system", "L")), "<start_of_turn>user\nS\n\nU\n\nL<end_of_turn>\n<start_of_turn>model\n"),
        (NO_SYSTEM, (USER,), "<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"),
        (ONE_SYSTEM, (*TWO, USER), "<system>S1\n\nS2<user>U"),
        (DEAF, (*TWO, USER, SAID), "<user>S1\n\nS2\n\nU<assistant>A"),
    ],
)  # fmt: skip
def test_the_system_s_text_is_never_lost(source: str, messages: tuple[Message, ...], expected: str) -> None:
    template, tokenizer = ChatTemplate(source), CharTokenizer([])
    form = AnswerFormat.of(template, tokenizer)
    prompt = tokenizer.text(encode_chat(template, tokenizer, form.prepared(request(*messages))))
    assert prompt == expected


def test_functions_that_are_told_in_words_reach_a_template_without_a_system() -> None:
    template, tokenizer = ChatTemplate(NO_SYSTEM), CharTokenizer([])
    form = AnswerFormat.of(template, tokenizer)
    prompt = tokenizer.text(encode_chat(template, tokenizer, form.prepared(request(*AGENT, tools=(LOOK,)))))
    first, _, rest = prompt.partition("<end_of_turn>")
    assert first.startswith("<start_of_turn>user\nS\n\nYou can call functions.")
    assert first.endswith("U1\n\nL1")
    assert "U2" in rest
    assert "U1" not in rest


@pytest.mark.parametrize(
    "source", [STRICT_TOOLS, THINKING_TOOLS, TOOLS, PLAIN, NO_SYSTEM, ONE_SYSTEM, DEAF, ECHO_CHAT_TEMPLATE]
)
def test_every_template_gets_all_that_an_agent_says(source: str) -> None:
    template, tokenizer = ChatTemplate(source), CharTokenizer([])
    asked = request(*AGENT, tools=(LOOK,))
    form = AnswerFormat.of(template, tokenizer)
    prompt = tokenizer.text(encode_chat(template, tokenizer, form.prepared(asked)))
    for text in ("U1", "L1", "R", "U2", "L2", "look"):
        assert prompt.count(text) >= 1


def test_a_template_that_refuses_everything_says_so_itself() -> None:
    template, tokenizer = ChatTemplate("{{ raise_exception('No.') }}"), CharTokenizer([])
    form = AnswerFormat.of(template, tokenizer)
    with pytest.raises(InvalidRequest, match=r"No\."):
        encode_chat(template, tokenizer, form.prepared(request(message("user", "x"))))
