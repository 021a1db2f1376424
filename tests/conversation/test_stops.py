"""The stop matcher against the definition, tried out the slow way on the whole text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stretto.conversation import StopMatcher

TEXTS = st.text(alphabet="abc\n", max_size=40)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=6)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    return max(
        (n for stop in stops for n in range(1, len(stop) + 1) if text.endswith(stop[:n])),
        default=0,
    )


@given(TEXTS, STOPS)
def test_matches_and_holds_what_the_definition_says(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    expected = first_match(text, stops)
    assert matcher.feed(text) == expected
    if expected is None:
        assert matcher.held == longest_beginning(text, stops)


@given(TEXTS, STOPS, st.lists(st.integers(0, 40)))
def test_how_the_text_is_cut_does_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    matcher, read = StopMatcher(stops), 0
    found = None
    for start, end in itertools.pairwise(bounds):
        found = matcher.feed(text[start:end])
        if found is not None:
            read += found[0]
            found = read, found[1]
            break
        read = end
    assert found == first_match(text, stops)


def test_a_string_inside_another_stops_first() -> None:
    assert StopMatcher(["abcd", "bc"]).feed("xabcd") == (4, "bc")


def test_of_strings_that_end_together_the_longest_counts() -> None:
    assert StopMatcher(["c", "bc", "abc"]).feed("xabc") == (4, "abc")


def test_empty_strings_never_match() -> None:
    matcher = StopMatcher(["", "z"])
    assert matcher.feed("abc") is None
    assert matcher.held == 0


def test_a_near_miss_begins_again() -> None:
    assert StopMatcher(["aab"]).feed("aaab") == (4, "aab")
