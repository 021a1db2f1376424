"""Which requests are cached, and that everything that shapes an answer is in the key."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from stretto.cache.key import cache_key, why_not_cached
from stretto.conversation.caller import Caller
from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import (
    RawPrompt,
    Reasoning,
    Request,
    SamplingParams,
    ToolChoice,
    ToolSpec,
)
from support.cache_requests import asked, said

PLAIN = asked("How?", said("system", "Be brief."), said("user", "Hi."), said("assistant", "Hello."))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"stream": True, "include_usage": True, "max_tokens": 5, "user": "u"}, None),
        ({"sampling": SamplingParams(temperature=0.2, top_p=0.5)}, None),
        ({"tool_choice": ToolChoice("none")}, None),
        ({"best_of": 1}, None),
        ({"reasoning": Reasoning(enabled=False)}, None),
        ({"caller": Caller(cache="off")}, "off"),
        ({"caller": Caller(cache="refresh")}, None),
        ({"prompts": (RawPrompt(text="a"),), "messages": ()}, "raw_prompt"),
        ({"continues": True}, "prefill"),
        ({"messages": (said("user", "Hi."), said("assistant", "Well"))}, "prefill"),
        ({"messages": (said("user", "  \n"),)}, "empty"),
        ({"tools": (ToolSpec("f"),)}, "tools"),
        ({"constraint": Constraint("json_object", "", "response_format")}, "structured"),
        ({"reasoning": Reasoning(enabled=True)}, "thinking"),
        ({"reasoning": Reasoning(effort="high")}, "thinking"),
        ({"n": 2}, "choices"),
        ({"best_of": 3}, "choices"),
        ({"logprobs": 0}, "logprobs"),
        ({"sampling": SamplingParams(seed=1)}, "seed"),
        ({"ignore_eos": True, "max_tokens": 4}, "ignore_eos"),
        ({"max_tokens": 0}, "no_answer"),
    ],
)
def test_what_is_cached(changes: dict[str, Any], reason: str | None) -> None:
    assert why_not_cached(replace(PLAIN, **changes)) == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "other"},
        {"model": "alias"},
        {"stream": True},
        {"include_usage": True},
        {"user": "u"},
        {"max_tokens": 9},
        {"lower_max_tokens": True},
        {"reflected": {"a": 1}},
        {"caller": Caller(memory="off", cache="refresh", idempotency_key="k")},
        {"tool_choice": ToolChoice("none")},
    ],
)
def test_what_changes_nothing_is_not_in_the_key(changes: dict[str, Any]) -> None:
    assert cache_key(replace(PLAIN, **changes), session=None) == cache_key(PLAIN, session=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"caller": Caller(tenant="t")},
        {"stop": ("x",)},
        {"sampling": SamplingParams(temperature=0.5)},
        {"sampling": SamplingParams(logit_bias={5: 1.0})},
        {"template_kwargs": {"a": 1}},
        {"reasoning": Reasoning(enabled=False)},
        {"messages": (said("system", "Be long."), *PLAIN.messages[1:])},
        {"messages": (*PLAIN.messages[:2], said("assistant", "Hello!"), PLAIN.messages[-1])},
        {"messages": (*PLAIN.messages[:-1], replace(PLAIN.messages[-1], name="Eve"))},
        {"messages": PLAIN.messages[1:]},
    ],
)
def test_what_shapes_an_answer_is_in_the_context(changes: dict[str, Any]) -> None:
    other, plain = cache_key(replace(PLAIN, **changes), session=None), cache_key(PLAIN, session=None)
    assert other.context != plain.context
    assert other.exact != plain.exact
    assert other.question == plain.question


def test_the_question_is_in_the_exact_key_alone() -> None:
    other = replace(PLAIN, messages=(*PLAIN.messages[:-1], said("user", "Why?")))
    plain, changed = cache_key(PLAIN, session=None), cache_key(other, session=None)
    assert plain.context == changed.context
    assert plain.exact != changed.exact
    assert (plain.question, changed.question) == ("How?", "Why?")


def test_a_session_is_a_world_of_its_own() -> None:
    found = {cache_key(PLAIN, session=session).context for session in (None, "", "a", "b")}
    assert len(found) == 4


def test_no_field_of_a_request_is_forgotten() -> None:
    """A new field is in the key by itself; this fails when one has a type of which no key can be made."""
    for field in fields(Request):
        assert cache_key(replace(PLAIN, **{field.name: getattr(PLAIN, field.name)}), session=None)


def test_what_no_key_can_be_made_of_is_an_error() -> None:
    with pytest.raises(TypeError, match="a request holds a set"):
        cache_key(replace(PLAIN, template_kwargs={"a": {1, 2}}), session=None)


def test_lines_that_clients_change_at_every_request_do_not_count() -> None:
    def with_line(version: int) -> Request:
        line = f"x-anthropic-billing-header: v={version}\nBe brief."
        return asked("How?", said("system", line))

    assert cache_key(with_line(1), session=None) == cache_key(with_line(2), session=None)
