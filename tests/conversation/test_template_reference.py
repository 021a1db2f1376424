"""Templates render as the reference implementation renders them, character by character."""

from __future__ import annotations

import functools
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.conversation import ChatTemplate, Message, ToolCall, ToolSpec
from stretto.conversation.template import message_dict, tool_dict
from stretto.errors import InvalidRequest
from support.conversation_templates import BOS, PLAIN, TOOLS
from support.conversation_tokens import message

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "Hello", "  two\n\nlines \n", "{{ 7*7 }} {% raw %}", "<b>&amp;\"'</b>", "中文 é 😀 \u2028"]
    ),
    st.text(max_size=20),
    st.just("<think>\nhm\n</think>\n\nYes."),
)
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.sampled_from(["call_1", "call_2"]),
        name=st.sampled_from(["look_up", "add"]),
        arguments=st.sampled_from(
            ["{}", '{"b": [1, 2.50, null], "a": "<é>"}', '{"x": {"y": "\\u00e9 \\" z"}}']
        ),
    ),
    max_size=2,
).map(tuple)
TOOL_SPECS = st.lists(
    st.sampled_from(
        [
            ToolSpec(
                "look_up",
                "Looks <things> up — fast.",
                {"type": "object", "properties": {"q": {"type": "string"}}},
            ),
            ToolSpec("add", None, {"type": "object", "properties": {}}),
        ]
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(message, st.just("system"), TEXTS),
        st.builds(message, st.just("user"), TEXTS, name=st.sampled_from([None, "ann"])),
        st.builds(message, st.just("assistant"), TEXTS, tool_calls=CALLS, reasoning=st.sampled_from([None, "Let me see."])),
        st.builds(message, st.just("tool"), TEXTS, tool_call_id=st.just("call_1")),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


def reference(source: str, messages: list[Message], tools: list[ToolSpec], **extra: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[[message_dict(m) for m in messages]],
        tools=[tool_dict(tool) for tool in tools] or None,
        chat_template=source,
        **{"add_generation_prompt": True, **SPECIAL, **extra},
    )
    text = rendered[0]
    assert isinstance(text, str)
    return text


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, **SPECIAL)


def ours(source: str, messages: list[Message], tools: list[ToolSpec], **extra: Any) -> str:
    add = extra.pop("add_generation_prompt", True)
    return compiled(source).render(messages, tools, add_generation_prompt=add, extra=extra)


@pytest.mark.parametrize("source", [PLAIN, TOOLS], ids=["plain", "tools"])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(
    MESSAGES, TOOL_SPECS, st.sampled_from([{}, {"add_generation_prompt": False}, {"enable_thinking": False}])
)
def test_any_conversation(
    source: str, messages: list[Message], tools: list[ToolSpec], extra: dict[str, Any]
) -> None:
    assert ours(source, messages, tools, **extra) == reference(source, messages, tools, **extra)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(MESSAGES)
def test_a_template_that_refuses(messages: list[Message]) -> None:
    """Where the reference raises the template's words, so do we."""
    from jinja2.exceptions import TemplateError

    words = expected = None
    try:
        expected = reference(BOS, messages, [])
    except TemplateError as error:
        words = str(error)
    if words is None:
        assert ours(BOS, messages, []) == expected
    else:
        with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
            ours(BOS, messages, [])
        assert caught.value.code == "template_error"


SNIPPETS = [
    "{{ messages | tojson }}|{{ messages | tojson(indent=4) }}|{{ messages | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{{ messages | tojson(ensure_ascii=True) }}",
    "{%- for m in messages -%}  {%- if loop.index > 1 %}{% break %}{% endif -%}  {{ m.content }}\n  {%- endfor %}\n\n  end  ",
    "   {% if true %}\n    indented\n  {% endif %}\n\n{# gone #}\nkept\n",
    "{% set x = 'a' ~ 1 ~ none ~ true ~ 2.5 %}{{ x }}{{ missing }}{{ missing is defined }}{{ none }}{{ [1, 'a', {'b': none}] }}",
    "{{ '%s|%5d|%-4s|%.2f' % ('a', 7, 'b', 2.345) }}{{ '{:>4}|{x}'.format(1, x='y') }}{{ '%(a)s' % {'a': 'q'} }}",
    "{{ 'a,b,c'.split(',')[-1] }}{{ 'abc'[1:] }}{{ 'x'.join(['1', '2']) }}{{ ' a '.strip() }}{{ 'abc'.title().center(9) }}|",
    "{% macro f(a, b='z') %}[{{ a }}{{ b }}{{ caller() if caller else '' }}]{% endmacro %}{{ f('q') }}{% call f('w') %}in{% endcall %}",
    "{% set ns = namespace(n=0) %}{% for i in range(5) if i % 2 %}{% set ns.n = ns.n + i %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}{{ ns.n }}",
    "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a ~ b }}{{ loop.cycle('o', 'e') }}{% endfor %}{{ dict(a=1) }}{{ dict.fromkeys(['k']) }}",
    "{{ [3, 1, 2] | sort | join('-') }}{{ [1, 2] | sum }}{{ [1, 1] | unique | list }}{{ 'a\nb' | indent(2) }}{{ 2.6 | round | int }}{{ 'Ab' | lower }}{{ [1, 2] | last }}",
    "{{ messages | rejectattr('role', 'equalto', 'x') | map(attribute='content') | map('upper') | list }}",
    "{% set t %}a{{ 1 }}b{% endset %}{{ t }}{% filter upper %}x{{ t }}{% endfilter %}{{ t | safe }}{{ '<' | e }}",
    "{% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }},{% endfor %}",
    "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 5 }}{{ 'ab' * 2 }}{{ [1] + [2] }}{{ 1 in [1, 2] }}{{ 'a' not in 'abc' }}{{ -3 | abs }}",
    "{% with a = 1 %}{{ a }}{% endwith %}{% if messages[0].name %}n{% elif messages[0]['content'] %}c{% else %}e{% endif %}",
    "{{ messages[0].items() | list | length }}{{ messages[0].get('nope', 'd') }}{{ messages[0].keys() | sort }}",
    "{{ '' if bos_token is undefined else bos_token }}{{ eos_token | length }}{{ documents is none }}{{ tools is none }}",
    "{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y is defined }}",
    "{% set j = joiner('; ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}{{ cycler('a', 'b').next() }}",
]  # fmt: skip


@pytest.mark.parametrize("source", SNIPPETS)
def test_features(source: str) -> None:
    messages = [
        message("system", "Be <kind> & 'brief'."),
        message("user", "Grüße,\n中文 😀"),
        message("assistant", "", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)),
    ]
    assert ours(source, messages, []) == reference(source, messages, [])


@pytest.mark.real_model
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=40)
@given(messages=MESSAGES)
def test_the_real_template(messages: list[Message], real_template: str) -> None:
    assert ours(real_template, messages, []) == reference(real_template, messages, [])


@pytest.fixture(scope="module")
def real_template(smollm2_path: Path) -> str:
    """The value of ``tokenizer.chat_template``: after the key come a 32-bit type (8: string) and a 64-bit length."""
    key = b"tokenizer.chat_template"
    with smollm2_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(key) + len(key)
        kind, length = struct.unpack_from("<IQ", data, start)
        assert kind == 8
        return data[start + 12 : start + 12 + length].decode()
