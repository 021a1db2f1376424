"""Requests for completions: the forms of a prompt, what fields mean together, and every refusal with its path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.conversation import Constraint, RawPrompt, Request, SamplingParams
from stretto.dialects.fields import field_table
from stretto.dialects.openai_completion import COMPLETION, COMPLETION_SCHEMA, parse_completion
from stretto.dialects.openai_errors import error_body
from stretto.errors import InvalidRequest
from support.dialect_fuzz import ANYTHING, mutated


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "Once", **fields}).encode()


def parse(**fields: Any) -> Request:
    return parse_completion(body(**fields), request_id="cmpl-1")


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", [RawPrompt("Once")]),
        ("", [RawPrompt("")]),
        (["a", "b", ""], [RawPrompt("a"), RawPrompt("b"), RawPrompt("")]),
        ([1, 2, 3], [RawPrompt(ids=(1, 2, 3))]),
        ([[1, 2], [3]], [RawPrompt(ids=(1, 2)), RawPrompt(ids=(3,))]),
        ([1.0, 2], [RawPrompt(ids=(1, 2))]),
    ],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: list[RawPrompt]) -> None:
    request = parse(prompt=prompt, n=2)
    assert request.prompts == tuple(prompts)
    assert request.messages == ()
    assert request.choices == 2 * len(prompts)


def test_the_plain_request() -> None:
    request = parse()
    assert request.id == "cmpl-1"
    assert COMPLETION.id_prefix == "cmpl-"
    assert (request.max_tokens, request.n, request.best_of, request.logprobs) == (16, 1, None, None)
    assert request.sampling == SamplingParams()
    assert not request.stream


def test_every_field() -> None:
    request = parse(
        prompt=["a", "b"], echo=True, max_tokens=0, n=2, best_of=5, logprobs=0, add_special_tokens=False, temperature=0,
        top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.1, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 2},
        seed=7, stop=["x", ""], stream_options={"include_usage": True}, user="u", service_tier="flex", guided_regex="a+",
        metadata={"a": "b"}, store=True,
    )  # fmt: skip
    prompts = tuple(RawPrompt(text, echo=True, add_bos=False) for text in "ab")
    assert request.prompts == prompts
    assert (request.max_tokens, request.n, request.best_of, request.drawn, request.logprobs) == (
        0,
        2,
        5,
        5,
        0,
    )
    assert request.sampling == SamplingParams(0.0, 3, 0.5, 0.1, 1.1, 1.0, -1.0, {5: 2.0}, 7)
    assert request.stop == ("x",)
    assert request.include_usage
    assert request.user == "u"
    assert request.priority == "background"
    assert request.constraint == Constraint("regex", "a+", "guided_regex")


def test_a_suffix() -> None:
    assert parse(suffix=" end").prompts == (RawPrompt("Once", suffix=" end"),)
    assert parse(suffix="").prompts == (RawPrompt("Once"),)
    assert parse(suffix="", echo=True).prompts == (RawPrompt("Once", echo=True),)


def test_best_of_that_is_n_draws_no_more() -> None:
    assert parse(n=3, best_of=3, stream=True).best_of is None
    assert parse(n=3, best_of=4).drawn == 4


BROKEN: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prompt": None}, "missing_parameter", "prompt", "required"),
    ({"prompt": 7}, "invalid_value", "prompt", "a string or a list"),
    ({"prompt": []}, "invalid_value", "prompt", "at least 1"),
    ({"prompt": [[]]}, "invalid_value", "prompt[0]", "at least 1"),
    ({"prompt": [True]}, "invalid_value", "prompt[0]", "a string"),
    ({"prompt": [-1]}, "invalid_value", "prompt[0]", "at least 0"),
    ({"prompt": [0.5]}, "invalid_value", "prompt[0]", "a string"),
    ({"prompt": [[1, "a"]]}, "invalid_value", "prompt[0][1]", "a whole number"),
    ({"prompt": ["a", [1]]}, "invalid_value", "prompt[1]", "of one kind"),
    ({"prompt": ["a", "b", 1]}, "invalid_value", "prompt[2]", "of one kind"),
    ({"prompt": [1, "a"]}, "invalid_value", "prompt[1]", "of one kind"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens", "at least 0"),
    ({"logprobs": 21}, "invalid_value", "logprobs", "at most 20"),
    ({"logprobs": True}, "invalid_value", "logprobs", "a whole number"),
    ({"n": 0}, "invalid_value", "n", "at least 1"),
    ({"best_of": 21}, "invalid_value", "best_of", "at most 20"),
    ({"n": 3, "best_of": 2}, "invalid_value", "best_of", "at least n"),
    ({"best_of": 2, "stream": True}, "invalid_value", "best_of", "do not stream"),
    ({"suffix": "x", "echo": True}, "invalid_value", "echo", "do not go together"),
    ({"suffix": 1}, "invalid_value", "suffix", "a string"),
    ({"echo": "x"}, "invalid_value", "echo", "true or false"),
    ({"messages": []}, "unknown_parameter", "messages", "Unknown"),
    ({"max_completion_tokens": 3}, "unknown_parameter", "max_completion_tokens", "Unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "part"), BROKEN)
def test_what_is_wrong(fields: dict[str, Any], code: str, param: str, part: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.param) == (code, param)
    assert part in str(error)


BODIES = st.one_of(
    ANYTHING,
    st.dictionaries(st.sampled_from(sorted(field_table(COMPLETION_SCHEMA).known)), ANYTHING, max_size=8),
    st.builds(
        lambda prompt, more: {"model": "m", "prompt": prompt, **more},
        st.sampled_from(["x", ["x", "y"], [1, 2], [[1], [2, 3]]]).flatmap(mutated),
        st.dictionaries(st.sampled_from(sorted(field_table(COMPLETION_SCHEMA).known)), ANYTHING, max_size=2),
    ),
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(BODIES)
def test_any_json_is_parsed_or_refused(document: Any) -> None:
    try:
        parsed = parse_completion(json.dumps(document).encode(), request_id="cmpl-1")
    except InvalidRequest as error:
        refused = json.loads(error_body(error))["error"]
        assert refused["type"] == "invalid_request_error"
        assert refused["code"]
        assert len(refused["message"]) < 1000
    else:
        assert parsed.prompts
        assert all((prompt.text is None) != (prompt.ids is None) for prompt in parsed.prompts)
