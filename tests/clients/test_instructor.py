"""``instructor``, unmodified: each of its modes reads a Pydantic model out of an answer. The echo model says what the user said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from support.clients import client
from support.daemon import RunningDaemon

instructor = client("instructor")
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException  # noqa: E402

# Its own modules warn of each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:instructor")


class City(BaseModel):
    name: str = Field(max_length=40)
    country: str = Field(max_length=40)


PARIS = City(name="Paris", country="France")
TEXT = PARIS.model_dump_json()
CALL = f'<tool_call>\n{{"name": "City", "arguments": {TEXT}}}\n</tool_call>'
PARTIAL_CALL = CALL.replace('"City"', '"PartialCity"')


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def client_of(daemon: RunningDaemon, mode: str = "TOOLS") -> Any:
    raw = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0)
    return instructor.from_openai(raw, mode=instructor.Mode[mode])


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("TOOLS", CALL),
        ("TOOLS_STRICT", CALL),
        ("JSON", TEXT),
        ("JSON_SCHEMA", TEXT),
        ("MD_JSON", f"```json\n{TEXT}\n```"),
        ("RESPONSES_TOOLS", CALL),
    ],
)
def test_a_model_is_read_in_every_mode(daemon: RunningDaemon, mode: str, says: str) -> None:
    client = client_of(daemon, mode)
    found = client.create(model="echo", response_model=City, messages=said(says), max_retries=0)
    # Its own subclass of the model.
    assert found.model_dump() == PARIS.model_dump()


@pytest.mark.parametrize(("mode", "says"), [("ANTHROPIC_TOOLS", CALL), ("ANTHROPIC_JSON", TEXT)])
def test_a_model_is_read_through_anthropic_s_client(daemon: RunningDaemon, mode: str, says: str) -> None:
    raw = anthropic.Anthropic(base_url=daemon.url, api_key="local", max_retries=0)
    client = instructor.from_anthropic(raw, mode=instructor.Mode[mode])
    found = client.create(
        model="echo", max_tokens=300, response_model=City, messages=said(says), max_retries=0
    )
    assert found.model_dump() == PARIS.model_dump()


def test_a_model_that_the_text_does_not_hold_is_valid_all_the_same(daemon: RunningDaemon) -> None:
    found = client_of(daemon).create(
        model="echo", response_model=City, messages=said("Which city?"), max_retries=0, seed=1
    )
    assert isinstance(found, City)


def test_a_stream_of_a_growing_model(daemon: RunningDaemon) -> None:
    client = client_of(daemon)
    found = list(client.create_partial(model="echo", response_model=City, messages=said(PARTIAL_CALL)))
    assert found[-1].model_dump() == PARIS.model_dump()
    names = [part.name for part in found if part.name]
    assert len(set(names)) > 1
    assert all("Paris".startswith(name) for name in names)


def test_a_chat_without_a_model(daemon: RunningDaemon) -> None:
    reply = client_of(daemon).create(
        model="echo", response_model=None, messages=said("Is it you?"), max_retries=0
    )
    assert reply.choices[0].message.content == "Is it you?"


def test_several_calls_at_once(daemon: RunningDaemon) -> None:
    client = client_of(daemon, "PARALLEL_TOOLS")
    found = list(
        client.create(
            model="echo", response_model=Iterable[City], messages=said(f"{CALL}\n{CALL}"), max_retries=0
        )
    )
    assert found == [PARIS, PARIS]


def test_a_cut_off_answer_is_told(daemon: RunningDaemon) -> None:
    with pytest.raises((IncompleteOutputException, InstructorRetryException), match="incomplete"):
        client_of(daemon).create(
            model="echo", response_model=City, messages=said(CALL), max_tokens=50, max_retries=0
        )


def test_errors_reach_the_caller(daemon: RunningDaemon) -> None:
    with pytest.raises(InstructorRetryException, match="model_not_found"):
        client_of(daemon).create(model="other", response_model=City, messages=said(CALL), max_retries=0)
