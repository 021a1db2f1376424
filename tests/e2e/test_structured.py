"""Structured output through the whole daemon, by the official ``openai`` package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from support.daemon import ECHO, RunningDaemon, running
from support.grammar_checks import check, longest_gap
from support.grammar_schemas import MODELS

# A model that draws nearly at random, and the inclination to end strings and objects that makes its answers short.
RANDOM = (*ECHO, "--echo", "peak=0")
ENDING = {"34": 5, "125": 3, "93": 3, "258": 6}
QUESTION: Any = [{"role": "user", "content": "Describe Ada Lovelace as JSON."}]


class Mood(Enum):
    GLAD = "glad"
    SAD = "sad"


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    mood: Mood
    friends: list[str] = Field(max_length=2)
    spouse: str | None


@pytest.fixture(scope="module")
def random_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("random"), *RANDOM) as daemon:
        yield daemon


def client_of(daemon: RunningDaemon) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0)


def schema_format(schema: dict[str, Any], *, strict: bool) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": strict}}


@pytest.mark.parametrize("seed", range(5))
def test_parse_gives_a_model(random_daemon: RunningDaemon, seed: int) -> None:
    with client_of(random_daemon) as client:
        reply = client.chat.completions.parse(
            model="echo",
            messages=QUESTION,
            response_format=Person,
            seed=seed,
            temperature=2,
            logit_bias=ENDING,
        )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(reply.choices[0].message.parsed, Person)


@pytest.mark.parametrize("strict", [True, False])
def test_a_stream_is_valid_too(random_daemon: RunningDaemon, strict: bool) -> None:
    with client_of(random_daemon) as client:
        for model in MODELS:
            schema = model.model_json_schema()
            chunks = client.chat.completions.create(
                model="echo",
                messages=QUESTION,
                stream=True,
                seed=3,
                temperature=2,
                max_tokens=1500,
                logit_bias=ENDING,
                response_format=schema_format(schema, strict=strict),
            )
            choices = [chunk.choices[0] for chunk in chunks]
            text = "".join(choice.delta.content or "" for choice in choices)
            assert longest_gap(text) <= 13
            if choices[-1].finish_reason == "stop":
                check(schema, text)


def test_what_cannot_be_honoured_is_400_before_the_first_byte(random_daemon: RunningDaemon) -> None:
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    }
    with client_of(random_daemon) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model="echo",
                    messages=QUESTION,
                    stream=stream,
                    response_format=schema_format(schema, strict=False),
                )
            assert caught.value.code == "unsupported_schema"
            assert caught.value.param == "response_format.json_schema.schema.properties.tags.uniqueItems"
        # The engine has not seen it, and the next request is served.
        assert client.chat.completions.create(model="echo", messages=QUESTION, max_tokens=3).choices


def test_the_extras(random_daemon: RunningDaemon) -> None:
    def ask(**extra: Any) -> str:
        reply = client.chat.completions.create(
            model="echo", messages=QUESTION, logit_bias=ENDING, extra_body=extra
        )
        assert reply.choices[0].finish_reason == "stop"
        return reply.choices[0].message.content or ""

    with client_of(random_daemon) as client:
        assert ask(guided_choice=["positive", "negative"]) in ("positive", "negative")
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", ask(guided_regex=r"\d{4}-\d{2}-\d{2}"), re.ASCII)
        assert re.fullmatch(
            r"[ab]{3}!", ask(guided_grammar='start: letter letter letter "!"\nletter: "a" | "b"')
        )
        text = ask(response_format={"type": "json_object"})
        assert isinstance(json.loads(text), dict)


@pytest.mark.torch
@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_the_real_model(real_daemon: RunningDaemon) -> None:
    with client_of(real_daemon) as client:
        reply = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Tell me about Ada Lovelace, who is 36 years old."}],
            response_format=schema_format(Person.model_json_schema(), strict=True),
            temperature=0,
            max_tokens=24,
        )
        text = reply.choices[0].message.content or ""
        assert text.startswith("{")
        assert longest_gap(text) <= 13
        if reply.choices[0].finish_reason == "stop":
            Person.model_validate_json(text)
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Is Paris the capital of France? Answer yes or no."}],
            temperature=0,
            extra_body={"guided_choice": ["Yes", "No"]},
        )
        assert answer.choices[0].message.content in ("Yes", "No")
        assert answer.choices[0].finish_reason == "stop"
