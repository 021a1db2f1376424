"""The parser of event streams, against a plain reading of whole streams and against the official OpenAI client's decoder."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from clientlib.errors import ProtocolError
from clientlib.sse import MAX_EVENT_BYTES, ServerSentEvent, SseParser

FRAGMENTS = (
    b"data", b"data:", b"data: ", b"event: x", b":", b": ping", b"id: 7", b"retry: 5", b"\r\n", b"\n", b"\r", b"\n\n", b"\r\r",
    b"\r\n\r\n", b" ", "é€😀".encode(), b"\xff", b"\xe2\x82", b"\xef\xbb\xbf", b"{}", b"[DONE]",
)  # fmt: skip
STREAMS = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(b"".join)


def parse(pieces: list[bytes]) -> list[ServerSentEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def read_whole(stream: bytes) -> list[ServerSentEvent]:
    """The standard's rules on a stream that is all there."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]
    events: list[ServerSentEvent] = []
    data: list[str] = []
    kind = ""
    for line in lines:
        if not line:
            if data:
                events.append(ServerSentEvent("\n".join(data), kind or "message"))
            data, kind = [], ""
            continue
        name, _, value = line.partition(b":")
        text = (value[1:] if value.startswith(b" ") else value).decode("utf-8", "replace")
        if name == b"data":
            data.append(text)
        elif name == b"event":
            kind = text
    return events


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 200), max_size=12))
def test_any_split_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    assert parse(pieces) == read_whole(stream)


@given(stream=STREAMS)
def test_byte_by_byte(stream: bytes) -> None:
    assert parse([stream[at : at + 1] for at in range(len(stream))]) == read_whole(stream)


@settings(max_examples=50)
@given(
    events=st.lists(
        st.lists(
            st.sampled_from(["data: a", "data:b", "data: é", ": ping", "data"]), min_size=1, max_size=4
        ).filter(lambda lines: any(line.startswith("data:") for line in lines)),
        max_size=6,
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_agrees_with_the_openai_decoder(events: list[list[str]], end: str) -> None:
    stream = "".join(line + end for lines in events for line in [*lines, ""]).encode()
    theirs = [event.data for event in SSEDecoder().iter_bytes(iter([stream]))]
    assert [event.data for event in parse([stream])] == theirs


def test_an_unfinished_event_is_none() -> None:
    assert parse([b"data: whole\n\ndata: half\n"]) == [ServerSentEvent("whole")]


def test_crlf_cut_in_the_middle_is_one_line_end() -> None:
    assert parse([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]) == [ServerSentEvent("a\nb")]


def test_names_and_comments() -> None:
    assert parse([b": ping\n\nevent: error\ndata: x\nid: 3\nother: y\n\n"]) == [ServerSentEvent("x", "error")]


@pytest.mark.parametrize("line", [b"x" * 4096, b"data: " + b"x" * 4089 + b"\n"])
def test_an_endless_event_is_refused(line: bytes) -> None:
    parser = SseParser()
    assert parser.feed(line * (MAX_EVENT_BYTES // 4096)) == []
    with pytest.raises(ProtocolError):
        parser.feed(line)
