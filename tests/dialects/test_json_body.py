"""Strict, bounded JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.dialects.json_body import MAX_PARTS, load_json, nested_deeper
from stretto.dialects.json_text import dumps
from stretto.errors import InvalidRequest
from support.conversation_requests import refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=30,
)  # fmt: skip


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "invalid_json", "line 1, column 1"),
        (b"{", "invalid_json", "line 1, column 2"),
        (b'{"a": 1,}', "invalid_json", "line 1"),
        (b"{'a': 1}", "invalid_json", "line 1"),
        (b'{"a": 1} x', "invalid_json", "Extra data"),
        (b'\xef\xbb\xbf{"a": 1}', "invalid_json", "BOM"),
        ('{"a": 1}'.encode("utf-16"), "invalid_json", "UTF-8"),
        (b'{"a": "\xff"}', "invalid_json", "byte 7"),
        (b'{"a": "\n"}', "invalid_json", "control character"),
        (b'{"a": NaN}', "invalid_json", "NaN"),
        (b'{"a": -Infinity}', "invalid_json", "-Infinity"),
        (b'{"a": 1e999}', "invalid_request_body", "too large for a double"),
        (b'{"a": ' + b"9" * 41 + b"}", "invalid_request_body", "41 digits"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "invalid_request_body", "10000 digits"),
        (b'{"a": "\\ud800"}', "invalid_request_body", "ud800"),
        (b'{"\\udc00": 1}', "invalid_request_body", "udc00"),
        (b"[" * 65 + b"]" * 65, "invalid_request_body", "deeper than 64"),
        (b"[" * 1_000_000, "invalid_request_body", "deeper than 64"),
        (b'{"a":' * 1_000_000, "invalid_request_body", "deeper than 64"),
        (b"[]", "invalid_request_body", "JSON object"),
        (b"null", "invalid_request_body", "JSON object"),
    ],
)
def test_bodies_that_are_refused(data: bytes, code: str, words: str) -> None:
    error = refusal(data)
    assert error.code == code
    assert words in error.message
    assert error.param is None


@given(JSON)
def test_what_json_is_read_as_python_reads_it(value: object) -> None:
    assert load_json(json.dumps(value).encode()) == value
    assert load_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert load_json(b'"\\ud83d\\ude00"') == "😀"


def test_of_a_key_written_twice_the_last_counts() -> None:
    assert load_json(b'{"a": 1, "a": 2}') == {"a": 2}


@given(JSON, st.integers(0, 6))
def test_depth_is_that_of_the_deepest(value: object, levels: int) -> None:
    assert nested_deeper(value, levels) == (depth(value) > levels)


def test_depth_is_allowed_up_to_64() -> None:
    assert load_json(b"[" * 64 + b"]" * 64) is not None
    assert load_json(b"[" + b'"[[[[[[[[[[",' * 100 + b"1]") is not None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        expected = json.loads(data.decode())
    except ValueError:
        with pytest.raises(InvalidRequest) as caught:
            load_json(data)
        assert caught.value.code == "invalid_json"
    else:
        assert load_json(data) == expected


@given(JSON)
def test_what_is_written_has_no_line_breaks_and_reads_back(value: object) -> None:
    text = dumps(value)
    assert len((text + "x").splitlines()) == 1
    assert json.loads(text.encode()) == value


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert dumps("a\ud800\u2028é").encode() == '"a\\ud800\\u2028é"'.encode()


def _chat_with(extra: bytes) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "metadata": ' + extra + b"}"


@pytest.mark.parametrize(
    "rubble",
    [
        b"[" + b"[]," * 410_000 + b"[]]",
        b"{" + b",".join(b'"k%d":1' % key for key in range(250_000)) + b"}",
        b"[" + b"1," * 410_000 + b"1]",
        b'["",' + b'"\\"",' * 410_000 + b'""]',
    ],
    ids=["lists", "keys", "numbers", "strings"],
)
def test_very_many_small_values_are_refused_unparsed(rubble: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("the parser was let at it"))
    error = refusal(_chat_with(rubble))
    assert error.code == "invalid_request_body"
    assert str(MAX_PARTS) in error.message


def test_marks_within_a_string_are_text() -> None:
    text = '[{"a":1},\\' * 150_000
    assert load_json(json.dumps([text]).encode()) == [text]


def test_a_string_without_an_end_is_scanned_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_json(b'"' + b'\\"' * 500_000 + b"\\")
    assert caught.value.code == "invalid_json"
