"""Replies and streams of every dialect are, byte by byte, the ones that were reviewed.

Where the wire format is meant to change: ``cd tests && python -m support.dialect_goldens``, then review ``git diff tests/dialects/goldens``.
"""

from __future__ import annotations

import json

import pytest

from support.dialect_goldens import as_file, goldens, path_of

DIALECTS = ("chat", "completions", "responses", "messages")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_byte_is_as_it_was_reviewed(dialect: str) -> None:
    reviewed = path_of(dialect).read_bytes()
    answers = goldens()[dialect]
    for name, data in answers.items():
        assert f"######## {name}\n".encode() + data in reviewed, f"{dialect}: {name} is rendered differently"
    assert as_file(answers) == reviewed


def test_all_dialects_are_there() -> None:
    assert tuple(goldens()) == DIALECTS


def documents(stream: str) -> list[dict[str, object]]:
    """The JSON of a stream's frames, each of which is whole."""
    assert stream.endswith("\n\n")
    found = []
    for frame in stream[:-2].split("\n\n"):
        *names, data = frame.split("\n")
        assert data.startswith("data: ")
        if data != "data: [DONE]":
            document = json.loads(data.removeprefix("data: "))
            assert names == ([f"event: {document['type']}"] if names else [])
            found.append(document)
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_reviewed_holds_together(dialect: str) -> None:
    """By the formats' own rules, whatever the renderers do."""
    for name, data in goldens()[dialect].items():
        text = data.decode()
        if "streamed" not in name:
            assert json.loads(text)["model"] == "served"
            continue
        found = documents(text)
        failed = name.startswith("error")
        if dialect in ("chat", "completions"):
            assert text.endswith("data: [DONE]\n\n")
            assert any("error" in document for document in found) is failed
            told = [document for document in found if document.get("usage")]
            assert len(told) == ("with usage" in name and not failed)
        elif dialect == "responses":
            assert [document["sequence_number"] for document in found] == list(range(len(found)))
            last = found[-1]["type"]
            assert last == (
                "response.failed"
                if failed
                else "response.incomplete"
                if name.startswith("cut")
                else "response.completed"
            )
        else:
            assert found[-1]["type"] == ("error" if failed else "message_stop")
            assert sum(document["type"] == "message_delta" for document in found) == (not failed)
