"""The schema files, by an independent validator; and the words for what they find."""

from __future__ import annotations

import importlib.resources
from typing import Any

import jsonschema
import pytest

from stretto.schemas import find_violation, path_text, schema, shown, validator

NAMES = sorted(
    file.name.removesuffix(".json")
    for file in importlib.resources.files("stretto._schemas").iterdir()
    if file.name.endswith(".json")
)


def test_the_schemas_are_found() -> None:
    assert {"admin-drain-request", "admin-stop-request", "openai-chat-request"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_a_schema(name: str) -> None:
    document = dict(schema(name))
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert validator(name) is validator(name)


@pytest.mark.parametrize(
    ("name", "document", "sentence"),
    [
        ("admin-stop-request", {}, None),
        ("admin-stop-request", {"grace_s": 0}, None),
        ("admin-stop-request", {"grace_s": 2.5}, None),
        ("admin-stop-request", {"grace_s": -1}, "'grace_s' is -1; it must be at least 0."),
        ("admin-stop-request", {"grace_s": 1e9}, "'grace_s' is 1000000000.0; it must be at most 3600."),
        ("admin-stop-request", {"grace_s": "5"}, "'grace_s' is \"5\"; it must be a number."),
        ("admin-stop-request", {"grace": 5}, "The body is an object; it must be without grace."),
        ("admin-stop-request", [], "The body is []; it must be an object."),
        ("admin-drain-request", {}, None),
        ("admin-drain-request", {"x": 1}, "The body is an object; it must be without x."),
    ],
)
def test_what_is_wrong_in_words(name: str, document: Any, sentence: str | None) -> None:
    found = find_violation(name, document)
    assert (found.sentence if found else None) == sentence
    assert jsonschema.Draft202012Validator(dict(schema(name))).is_valid(document) == (sentence is None)


def test_paths_and_values_are_short() -> None:
    assert path_text(["messages", 2, "content", 0, "type"]) == "messages[2].content[0].type"
    assert len(path_text(["x" * 1000])) == 60
    assert len(shown("x" * 1000)) < 70
    assert shown([1] * 1000) == "a list of 1000"
    assert shown({"a": 1}) == "an object"
    assert shown(None) == "null"
