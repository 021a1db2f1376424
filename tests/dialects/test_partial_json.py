"""The beginning of a JSON object, read as the official client's own parser reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from stretto.dialects.partial_json import load_object

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-999, 99999)
    | st.sampled_from([0.5, -1e30])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    st.integers(0, 4000),
    st.booleans(),
    st.booleans(),
)
def test_every_beginning_of_an_object(document: Any, cut: int, spaced: bool, ascii_only: bool) -> None:
    text = json.dumps(document, indent=1 if spaced else None, ensure_ascii=ascii_only)
    beginning = text[: 1 + cut % len(text)]
    assert load_object(beginning) == from_json(beginning.encode(), partial_mode=True)


@pytest.mark.parametrize(
    "text", ["", " ", "[1", '"x', "}", "nonsense", "{]", "{,}", '{"a" 1}', "{" * 2000, "[" * 99999]
)
def test_what_is_no_beginning_of_an_object_is_empty_and_harmless(text: str) -> None:
    assert load_object(text) == {}


def test_what_was_right_before_it_went_wrong() -> None:
    assert load_object('{"a": 1, "b": [2, 3}') == {"a": 1, "b": [2, 3]}
    assert load_object('{"a": 1, "b": NaN}') == load_object('{"a": 1, "b": 1e999}') == {"a": 1}
    assert load_object('{"a": ' + "[" * 600 + "]" * 600 + "}") == {}
