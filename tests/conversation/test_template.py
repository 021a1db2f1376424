"""What a template may not do, and what a caller is told then."""

from __future__ import annotations

import itertools
from datetime import datetime

import pytest

from stretto.conversation import ChatTemplate, Message, ToolCall
from stretto.conversation.template import message_dict
from stretto.errors import InvalidRequest, StartupError
from support.conversation_templates import BOS, PLAIN
from support.conversation_tokens import message

HI = [message("user", "hi")]

SLOW = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a filtered loop": "{% for a in range(99999) if range(9999) | select('none') | list %}{% endfor %}",
    "recursion that doubles": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "maps over maps": "{{ range(99999) | map('string') | map('replace', '', 'a' * 9999) | list | length }}",
    "nested recursive loops": "{% for a in range(9999) recursive %}{% if loop.depth < 9 %}{{ loop(range(9999)) }}{% endif %}{% endfor %}",
}
LARGE = {
    "doubling by ~": "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by +": "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by set": "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=['ab']) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "doubling dicts": "{% set ns = namespace(x=1) %}{% for a in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
    "a doubling macro": "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}",
    "times": "{{ 'x' * 10 ** 10 }}",
    "times a list": "{{ [messages] * 10 ** 7 }}",
    "squaring": "{% set ns = namespace(x=3) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "padding": "{{ 'a'.ljust(10 ** 10) }}",
    "centring": "{{ 'a' | center(10000000000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent with many": "{{ ('%(a)s' * 1000) % {'a': 'x' * 10000} }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "format with many": "{{ ('{0}' * 1000).format('x' * 10000) }}",
    "replace": "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
    "replace filter": "{{ ('a' * 10000) | replace('a', 'b' * 10000) }}",
    "join": "{{ ('b' * 10000).join('a' * 10000) }}",
    "join filter": "{{ range(9999) | join('b' * 10000) }}",
    "indent": "{{ ('a\n' * 10000) | indent(10000) }}",
    "tabs": "{{ ('\t' * 10000).expandtabs(10000) }}",
    "tojson": "{{ range(9999) | list | tojson(indent='            ' ~ '                                                  ') }}{{ [range(9999) | list] * 99 }}",
    "rounding": "{{ 1.5 | round(10 ** 8, 'ceil') }}",
    "writing literals": "{% for a in range(9999) %}" + "x" * 1000 + "{% endfor %}",
    "the date": "{{ strftime_now('%Y' * 300000) }}",
}  # fmt: skip
FORBIDDEN = {
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "internals by filter": "{{ (('' | attr('__class__')) | attr('__mro__'))[1] }}",
    "internals by format": "{{ '{0.__class__.__mro__[1]}'.format('') }}",
    "globals of a global": "{{ cycler.__init__.__globals__.os.popen('id') }}",
    "globals of ours": "{{ raise_exception.__globals__['json'] }}",
    "changing a list": "{{ messages.append(1) }}",
    "changing a dict": "{{ messages[0].update({'a': 1}) }}",
    "bytes": "{{ (1).to_bytes(10000000000) }}",
    "encode": "{{ 'a'.encode('utf-32') }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "private names": "{{ namespace(__class__=1) }}",
    "private names by set": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "files": "{% include '/etc/passwd' %}",
    "imports": "{% import 'os' as os %}",
    "summing lists": "{{ [[1]] | sum(start=[]) }}",
    "star widths": "{{ '%*d' % (10 ** 9, 1) }}",
    "lorem": "{{ lipsum(n=10 ** 9) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


def render(source: str, messages: list[Message] = HI, *, ticks: int = 5_000) -> str:
    """Render with a clock that a look at it moves on, so that being too slow takes no time."""
    clock = itertools.count()
    template = ChatTemplate(source, time_limit_s=ticks, max_chars=100_000, clock=lambda: float(next(clock)))
    return template.render(messages)


@pytest.mark.parametrize("name", SLOW)
def test_slow_templates_are_stopped(name: str) -> None:
    with pytest.raises(InvalidRequest, match="was stopped: it takes longer than") as caught:
        render(SLOW[name])
    assert caught.value.code == "template_error"
    assert caught.value.status == 400


@pytest.mark.parametrize("name", LARGE)
def test_growing_templates_are_stopped(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"was stopped: (it makes a value|it computes|it writes|the prompt)"
    ) as caught:
        render(LARGE[name], ticks=10**9)
    assert caught.value.code == "template_error"


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_sandbox_holds(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(FORBIDDEN[name])
    assert caught.value.code == "template_error"
    assert "failed on this conversation" in caught.value.message


def test_a_namespace_is_written_without_its_values() -> None:
    assert render("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}") == "<Namespace>"


def test_time_and_size_that_are_enough_are_enough() -> None:
    messages = [message("user", "x" * 900) for _ in range(100)]
    assert len(render(PLAIN, messages)) > 90_000


def test_the_words_of_a_refusal_reach_the_caller() -> None:
    with pytest.raises(InvalidRequest, match="refuses this conversation: Roles must alternate: assistant"):
        ChatTemplate(BOS).render([message("assistant", "hi")])


def test_a_failure_names_its_kind() -> None:
    with pytest.raises(InvalidRequest, match="UndefinedError: 'dict object' has no attribute 'nope'"):
        ChatTemplate("{{ messages[0].nope.x }}").render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ x",
        "{{ x | nosuchfilter }}",
        "{{ x is nosuchtest }}",
        "(" * 9 + "{{ " + "(" * 5000,
    ],
)
def test_a_text_that_is_no_template_is_refused_at_once(source: str) -> None:
    with pytest.raises(StartupError, match="chat template cannot be compiled") as caught:
        ChatTemplate(source)
    assert caught.value.code == "model_invalid"


def test_an_enormous_template_is_refused() -> None:
    with pytest.raises(StartupError, match="1000001 characters"):
        ChatTemplate("x" * 1_000_001)


@pytest.mark.parametrize(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"]
)
def test_a_caller_may_not_set_what_follows_from_the_request(name: str) -> None:
    template = ChatTemplate("{{ other }}")
    with pytest.raises(InvalidRequest) as caught:
        template.render(HI, extra={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"
    assert template.render(HI, extra={"other": "x"}) == "x"


def test_the_date_is_the_given_clocks() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2031, 4, 5))
    assert template.render(HI) == "05 Apr 2031"


def test_what_a_template_sees_of_a_message() -> None:
    calls = (ToolCall("1", "f", '{"b": 1}'), ToolCall("2", "g", "not json"), ToolCall("3", "h", ""))
    seen = message_dict(Message("assistant", tool_calls=calls, reasoning="r", name="n"))
    assert seen == {
        "role": "assistant",
        "content": "",
        "name": "n",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1}}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": "not json"}},
            {"id": "3", "type": "function", "function": {"name": "h", "arguments": {}}},
        ],
        "reasoning_content": "r",
        "thinking": "r",
    }
    assert message_dict(message("user", "hi")) == {"role": "user", "content": "hi"}


def test_one_template_serves_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    template = ChatTemplate(PLAIN)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda i: template.render([message("user", str(i))]), range(50)))
    assert all(f"user\n{i}<" in text for i, text in enumerate(texts))
