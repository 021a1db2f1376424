"""The names under which a model can be asked for, and what it is said to be able to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoTokenizer
from stretto.conversation import AnswerFormat, ChatTemplate
from stretto.errors import NotFound
from stretto.pipeline import ServedModel
from stretto.pipeline.served import capabilities_of
from support.chat_template import THINKING_TOOLS

MODEL = ServedModel("echo", ("small", "claude-*-4*", "a.b"), 0, 512, "echo", "echo", "cpu", "int32")


@pytest.mark.parametrize("name", ["echo", "small", "claude-opus-4-1", "claude--4", "a.b"])
def test_names_that_are_served(name: str) -> None:
    MODEL.resolve(name)


@pytest.mark.parametrize(
    "name", ["", "*", "Echo", "small ", "claude-opus-5", "my-claude-opus-4", "axb", "gpt-9"]
)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        MODEL.resolve(name)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("name", ["gpt-9", "x\ny", "*", ""])
def test_a_star_alone_takes_any_name(name: str) -> None:
    replace(MODEL, aliases=("*",)).resolve(name)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ECHO_CHAT_TEMPLATE, ("chat", "completion", "tools", "structured_output")),
        (THINKING_TOOLS, ("chat", "completion", "tools", "structured_output", "reasoning")),
        (None, ("completion",)),
    ],
)
def test_capabilities(source: str | None, expected: tuple[str, ...]) -> None:
    form = None if source is None else AnswerFormat.of(ChatTemplate(source), EchoTokenizer())
    assert capabilities_of(form) == expected
