"""Text assembly: whatever the tokens, the stream is what the whole text says; nothing is lost, nothing comes early."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stretto.conversation import LOWEST_LOGPROB, Finish, TextAssembler, TextDelta
from support.conversation_tokens import GivenToken, PieceTokenizer

TEXT = st.text(alphabet="ab\n é€😀\u2028", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n é€😀", min_size=0, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 120), max_size=40)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Bytes in pieces; a cut made twice leaves an empty piece (a control token)."""
    bounds = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The answer by its definition: up to the first character that completes a stop string, without it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(
    pieces: list[bytes], stops: list[str], *, batch: int = 1, logprobs: bool = False
) -> tuple[TextAssembler, list[TextDelta]]:
    tokenizer = PieceTokenizer(pieces)
    assembler = TextAssembler(tokenizer, index=0, stop=stops, logprobs=logprobs)
    deltas: list[TextDelta] = []
    tokens = tokenizer.tokens(logprobs=logprobs)
    for start in range(0, len(tokens), batch):
        deltas += assembler.push(tokens[start : start + batch])
        if assembler.stopped is not None:
            break
    return assembler, deltas + assembler.finish()


@given(TEXT, STOPS, CUTS, st.integers(1, 5))
@example("aab", ["ab"], [1, 2], 1)
@example("a😀b", ["b"], [2, 3], 1)
def test_the_stream_is_the_text_up_to_the_stop(
    text: str, stops: list[str], cuts: list[int], batch: int
) -> None:
    assembler, deltas = run(cut(text.encode(), cuts), stops, batch=batch)
    expected, stop = reference(text, stops)
    assert "".join(delta.text for delta in deltas) == expected
    assert assembler.stopped == stop
    assert all(delta.text for delta in deltas)


@given(TEXT, STOPS, CUTS)
def test_what_has_come_out_is_all_that_is_certain(text: str, stops: list[str], cuts: list[int]) -> None:
    """Held back is exactly the longest end that a stop string begins with, and what is not yet a character."""
    pieces = cut(text.encode(), cuts)
    tokenizer = PieceTokenizer(pieces)
    assembler = TextAssembler(tokenizer, index=0, stop=stops, logprobs=False)
    out, data = "", b""
    for token in tokenizer.tokens():
        out += "".join(delta.text for delta in assembler.push([token]))
        data += pieces[token.id]
        so_far = data.decode(errors="ignore")
        expected, stop = reference(so_far, stops)
        if stop is None:
            beginnings = (n for s in stops for n in range(1, len(s) + 1) if so_far.endswith(s[:n]))
            expected = so_far[: len(so_far) - max(beginnings, default=0)]
        assert out == expected


@given(st.binary(max_size=40), CUTS)
@example(b"\xf0\x9f\x98", [])
@example(b"\xed\xa0", [])
@example(b"\xc3\x28\xe2\x82", [1])
def test_invalid_bytes_read_as_python_reads_them(data: bytes, cuts: list[int]) -> None:
    _, deltas = run(cut(data, cuts), [])
    # An independent way to say it: what is cut off at the end is what more bytes could complete.
    tail = next((n for n in (1, 2, 3) if n <= len(data) and could_be_completed(data[len(data) - n :])), 0)
    expected = data[: len(data) - tail].decode(errors="replace")
    assert "".join(delta.text for delta in deltas) == expected


def could_be_completed(tail: bytes) -> bool:
    """Whether some one to three bytes make a character of it; these continuation bytes stand for all of their kind."""
    for length in (1, 2, 3):
        for more in itertools.product(b"\x80\x90\xa0\xbf", repeat=length):
            try:
                if len((tail + bytes(more)).decode()) == 1:
                    return True
            except UnicodeDecodeError:
                continue
    return False


@given(TEXT, STOPS, CUTS, st.integers(1, 4))
def test_logprobs_come_with_the_text_of_their_tokens(
    text: str, stops: list[str], cuts: list[int], batch: int
) -> None:
    pieces = cut(text.encode(), cuts)
    assembler, deltas = run(pieces, stops, batch=batch, logprobs=True)
    expected, _ = reference(text, stops)
    entries = [entry for delta in deltas for entry in delta.logprobs]
    # Every token of which a byte is in the answer is there, in order, and no other.
    offsets = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    inside = [i for i, piece in enumerate(pieces) if piece and offsets[i] < len(expected.encode())]
    assert [entry.logprob for entry in entries] == [-float(i) for i in inside]
    assert [entry.data for entry in entries] == [pieces[i] for i in inside]
    # An entry comes no earlier than the last character its token is part of, and no later than the next text.
    written, done = 0, 0
    for delta in deltas:
        written += len(delta.text.encode())
        done += len(delta.logprobs)
        due = [i for i in inside if offsets[i] + len(pieces[i]) <= written]
        begun = [i for i in inside if offsets[i] < written]
        assert len(due) <= done <= len(begun)
    assert assembler.counted_tokens <= len(pieces)


def test_tokens_are_counted_up_to_the_one_that_completes_the_stop() -> None:
    assembler = TextAssembler(
        tokenizer := PieceTokenizer([b"a", b"ST", b"OP!", b"more"]), index=0, stop=["STOP"], logprobs=False
    )
    assert assembler.push(tokenizer.tokens()) == [TextDelta(0, "a")]
    assert assembler.stopped == "STOP"
    assert assembler.counted_tokens == 3
    assert assembler.push(tokenizer.tokens()) == []
    assert assembler.counted_tokens == 3
    assert assembler.finish() == []


def test_held_text_comes_at_the_end() -> None:
    tokenizer = PieceTokenizer([b"one S", b"TO"])
    assembler = TextAssembler(tokenizer, index=2, stop=["STOP"], logprobs=False)
    assert assembler.push(tokenizer.tokens()) == [TextDelta(2, "one ")]
    assert assembler.finish() == [TextDelta(2, "STO")]
    assert assembler.finish() == []


def test_a_character_cut_off_by_the_end_is_dropped_and_its_logprob_kept() -> None:
    tokenizer = PieceTokenizer([b"a", b"\xf0\x9f"])
    assembler = TextAssembler(tokenizer, index=0, stop=[], logprobs=True)
    (delta,) = assembler.push(tokenizer.tokens(logprobs=True))
    assert (delta.text, len(delta.logprobs)) == ("a", 1)
    (last,) = assembler.finish()
    assert last.text == ""
    assert [entry.data for entry in last.logprobs] == [b"\xf0\x9f"]


def test_a_character_in_two_tokens_has_both_logprobs() -> None:
    tokenizer = PieceTokenizer([b"\xf0\x9f", b"\x98\x80"])
    assembler = TextAssembler(tokenizer, index=0, stop=[], logprobs=True)
    first, second = tokenizer.tokens(logprobs=True)
    assert assembler.push([first]) == []
    (delta,) = assembler.push([second])
    assert delta.text == "😀"
    assert [entry.token for entry in delta.logprobs] == ["\ufffd", "\ufffd\ufffd"]


def test_alternatives_and_the_logarithm_of_zero() -> None:
    tokenizer = PieceTokenizer([b"a", b"b", b""])
    assembler = TextAssembler(tokenizer, index=0, stop=[], logprobs=True)
    (delta,) = assembler.push([GivenToken(0, -0.5, ((0, -0.5), (1, -math.inf), (2, -3.0)))])
    (entry,) = delta.logprobs
    assert [(top.token, top.logprob, top.data) for top in entry.top] == [
        ("a", -0.5, b"a"),
        ("b", LOWEST_LOGPROB, b"b"),
        ("<control 2>", -3.0, b""),
    ]


@pytest.mark.parametrize(
    ("text", "reason", "finish"),
    [
        ("ab", "length", Finish(0, "length")),
        ("ab", "stop", Finish(0, "stop")),
        ("axb", "length", Finish(0, "stop", "x")),
    ],
)
def test_close_says_why_it_ended(text: str, reason: str, finish: Finish) -> None:
    tokenizer = PieceTokenizer([text.encode()])
    assembler = TextAssembler(tokenizer, index=0, stop=["x"], logprobs=False)
    assembler.push(tokenizer.tokens())
    assert assembler.close(reason)[-1] == finish  # type: ignore[arg-type]


def test_no_more_is_kept_than_a_stop_string_is_long() -> None:
    """So the work for a token does not grow with the text before it."""
    tokenizer = PieceTokenizer([b"aab"])
    assembler = TextAssembler(tokenizer, index=0, stop=["baabaab!"], logprobs=True)
    for _ in range(200):
        assembler.push([GivenToken(0, -1.0)])
        assert len(assembler._held) <= 7
        assert len(assembler._entries) <= 4
    assert sum(len(delta.text) for delta in assembler.finish()) <= 7
