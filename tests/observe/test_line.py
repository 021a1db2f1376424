"""The forms of a line, and what they refuse to carry."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stretto.observe.line import FORMS, MAX_TEXT_CHARS, Line, clean, describe_exception

TIME_S = datetime(2026, 11, 30, 10, 32, 1, 250_000, tzinfo=UTC).timestamp()
LINE = Line(
    TIME_S,
    "info",
    "completed",
    {
        "id": "chatcmpl-1",
        "prompt_tokens": 12,
        "finish": "stop",
        "queued_s": 0.0021,
        "decode_tokens_per_s": 12.345,
        "stream": True,
    },
)


def test_human() -> None:
    assert FORMS["human"](LINE) == (
        "2026-11-30T10:32:01.250Z info    chatcmpl-1 completed prompt=12 finish=stop queued=0.002s decode=12.3tok/s stream=yes\n"
    )


def test_journal_has_a_priority_and_no_time() -> None:
    line = Line(TIME_S, "warning", "warning", {"path": "/a b"}, "Something is odd.")
    assert FORMS["journal"](line) == '<4>warning Something is odd. path="/a b"\n'
    assert FORMS["journal"](Line(TIME_S, "error", "x")).startswith("<3>")


def test_json() -> None:
    assert json.loads(FORMS["json"](LINE)) == {
        "time": "2026-11-30T10:32:01.250Z",
        "level": "info",
        "event": "completed",
        "id": "chatcmpl-1",
        "prompt_tokens": 12,
        "finish": "stop",
        "queued_s": 0.0021,
        "decode_tokens_per_s": 12.345,
        "stream": True,
    }


ANY_TEXT = st.text(max_size=60)
FIELDS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    ANY_TEXT | st.integers() | st.booleans() | st.floats(-1e9, 1e9),
    max_size=5,
)


@given(ANY_TEXT, FIELDS, ANY_TEXT)
def test_every_line_is_one_line(event: str, fields: dict[str, str | int | float | bool], text: str) -> None:
    line = Line(TIME_S, "info", event, fields, text)
    for form in FORMS.values():
        written = form(line)
        written.encode("utf-8", "backslashreplace")
        assert written.endswith("\n")
        assert len(written.splitlines()) == 1
        assert written[:-1].isprintable()
    assert isinstance(json.loads(FORMS["json"](line)), dict)


def test_long_text_is_bounded() -> None:
    assert len(clean("x" * 10_000)) == MAX_TEXT_CHARS + 1


def test_an_exception_is_described_by_kind_and_place_alone() -> None:
    canary = "the-users-words"

    def broken() -> None:
        try:
            raise KeyError(canary)
        except KeyError as error:
            raise ValueError(canary) from error

    try:
        broken()
    except ValueError as error:
        found = describe_exception(ExceptionGroup(canary, [error, ExceptionGroup(canary, [OSError(canary)])]))
        assert found == {"exception": "ExceptionGroup", "exceptions": "ValueError OSError"}
        found = describe_exception(error)
        assert (found["exception"], found["cause"]) == ("ValueError", "KeyError")
        at = str(found["at"])
        assert at.startswith("observe/test_line.py:")
        assert at.endswith(" broken")
        assert canary not in repr(found)
