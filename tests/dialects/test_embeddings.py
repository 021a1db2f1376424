"""The Embeddings dialect: what bodies mean, what is refused, and that vectors survive the wire exactly."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from stretto.conversation.events import Usage
from stretto.dialects.openai_embeddings import EmbeddingsRequest, parse_embeddings, render_embeddings
from stretto.errors import InvalidRequest


def parse(**fields: Any) -> EmbeddingsRequest:
    return parse_embeddings(json.dumps({"model": "m", "input": "a"} | fields).encode())


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a text", ("a text",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ([7.0], ((7,),)),
    ],
)
def test_the_four_forms_of_input(given: Any, inputs: Any) -> None:
    assert parse(input=given).inputs == inputs


def test_fields() -> None:
    assert parse(user="u", dimensions=None) == EmbeddingsRequest("m", ("a",))
    assert parse(encoding_format="base64", dimensions=12, truncate=True) == EmbeddingsRequest(
        "m", ("a",), base64=True, dimensions=12, truncate=True
    )


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "missing_parameter", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": {}}, "invalid_value", "input"),
        ({"input": ["a", ""]}, "invalid_value", "input[1]"),
        ({"input": [[1], []]}, "invalid_value", "input[1]"),
        ({"input": [[1], [-1]]}, "invalid_value", "input[1][0]"),
        ({"input": [1, -1]}, "invalid_value", "input[1]"),
        ({"input": [1.5]}, "invalid_value", "input[0]"),
        ({"input": ["a", 1]}, "invalid_value", "input[1]"),
        ({"input": [1, [1]]}, "invalid_value", "input[1]"),
        ({"input": [["a"]]}, "invalid_value", "input[0][0]"),
        ({"input": ["a"] * 2049}, "invalid_value", "input"),
        ({"dimensions": 0}, "invalid_value", "dimensions"),
        ({"encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"truncate": "END"}, "invalid_value", "truncate"),
        ({"input_type": "query"}, "unknown_parameter", "input_type"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize("encoded", [False, True])
def test_every_value_reads_back_as_the_same_float32(encoded: bool) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((3, 64)) * 10.0 ** rng.integers(-30, 3, size=(3, 64))).astype(np.float32)
    vectors[0, :3] = 0.0, -0.0, 1.0
    request = EmbeddingsRequest("alias", ("a", "b", "c"), base64=encoded)
    body = json.loads(render_embeddings(request, "m", vectors, Usage(12, 0)))
    assert (body["object"], body["model"]) == ("list", "m")
    assert body["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [
        ("embedding", i) for i in range(3)
    ]
    for entry, row in zip(body["data"], vectors, strict=True):
        got = entry["embedding"]
        values = np.frombuffer(base64.b64decode(got), "<f4") if encoded else np.array(got, dtype=np.float32)
        assert np.array_equal(values, row)
