"""Drafts by prompt lookup, against a plain search; and how many of them a step computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engine.drafts import LEAST_MATCH_TOKENS, LONGEST_MATCH_TOKENS, MOST_DRAFT_TOKENS, Drafter
from stretto.engine.speculation import StepCost, draft_lengths


def ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def searched(text: list[int]) -> list[int]:
    """The same by trying every place, from the end on: the longest match, the latest of those, among the latest 16."""
    places = []
    for end in range(len(text) - 2, 0, -1):
        length = 0
        while (
            length < LONGEST_MATCH_TOKENS
            and length <= end
            and text[end - length] == text[len(text) - 1 - length]
        ):
            length += 1
        if length >= LEAST_MATCH_TOKENS:
            places.append((length, end))
    if not places:
        return []
    _, end = max(places[:16], key=lambda place: place[0])
    followed = text[end + 1 :]
    while len(followed) < MOST_DRAFT_TOKENS:
        followed += text[end + 1 :]
    return followed[:MOST_DRAFT_TOKENS]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=30), st.data()
)
def test_the_longest_and_latest_match_is_followed(
    prompt: list[int], answer: list[int], data: st.DataObject
) -> None:
    drafter = Drafter(np.array(prompt, dtype=np.int32))
    told = 0
    while told < len(answer):  # however many tokens came between two drafts
        told = min(len(answer), told + data.draw(st.integers(1, 4)))
        assert drafter.propose(answer[:told]).tolist() == searched(prompt + answer[:told])


def test_long_answers_do_not_outgrow_it() -> None:
    drafter = Drafter(ids("ab"))
    answer = ids("the quick brown fox " * 50).tolist()
    for end in range(0, len(answer), 7):
        drafter.propose(answer[:end])
    assert drafter.propose(answer).tolist() == answer[:MOST_DRAFT_TOKENS]


def test_what_the_caller_expects_is_looked_through_first_and_not_across_its_end() -> None:
    drafter = Drafter(ids("Change x to y."), ids("y = 1"))
    assert drafter.propose(ids("y =").tolist()).tolist() == ids(" 1").tolist()
    assert drafter.propose(ids("y = 1").tolist()).size == 0  # behind it there is nothing


def test_drafts_are_judged_by_what_came() -> None:
    drafter = Drafter(ids("one two, one two, one"))
    assert drafter.propose([]).size
    before = drafter.rate
    assert drafter.propose(ids(" two, one").tolist()).size
    assert drafter.rate > before
    liar = Drafter(ids("one two, one two, one"))
    for end, letter in enumerate("abcdefgh"):
        text = "".join(f"{before}one" for before in "abcdefgh"[:end])
        assert liar.propose(ids(text).tolist()).size, letter
    assert liar.rate < 0.3


def cost_of(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for rows, step_s in steps:
        cost.observe(rows, step_s)
    return cost


def test_the_cost_of_steps_is_fitted() -> None:
    cost = cost_of(*[(rows, 0.010 + 0.002 * rows) for rows in (1, 4, 8, 2, 1, 16, 3)] * 4)
    assert cost.row_s == pytest.approx(0.002, rel=0.05)
    assert cost.step_s(10) == pytest.approx(0.030, rel=0.05)


def test_one_size_of_steps_says_little_of_others() -> None:
    cost = cost_of(*[(1, 0.010)] * 20)
    assert cost.step_s(1) == pytest.approx(0.010)
    assert cost.row_s == pytest.approx(0.002)
    assert cost_of(*[(4, 0.016)] * 20).row_s == pytest.approx(0.002)
    assert (StepCost().step_s(5), StepCost().row_s) == (0.0, 0.0)


def test_rows_never_come_to_be_for_nothing_or_to_be_all() -> None:
    """Noise can make a fit absurd: larger steps that took less time, or a step without rows that takes less than none."""
    assert 0 <= cost_of(*[(1, 0.02), (8, 0.01)] * 5).row_s <= 0.002
    steep = cost_of(*[(1, 0.001), (2, 0.1)] * 5)
    assert steep.row_s <= steep.step_s(2) / 1.5 + 1e-9


@pytest.mark.parametrize(
    ("drafts", "row_s", "lengths"),
    [
        ([(15, 0.9)], 0.0, [15]),  # a row for nothing: as far as there is a chance of a tenth
        ([(15, 0.5)], 0.0, [3]),
        ([(15, 0.9)], 0.010, [0]),  # two rows cost twice as much as one: no draft can pay
        ([(15, 0.3)], 0.004, [0]),
        ([(4, 1.0), (0, 0.0), (2, 0.2)], 0.001, [4, 0, 0]),
        ([], 0.001, []),
    ],
)
def test_what_pays_is_computed(drafts: list[tuple[int, float]], row_s: float, lengths: list[int]) -> None:
    cost = cost_of(*[(rows, 0.010 + row_s * (rows - 1)) for rows in (1, 2, 4, 8)] * 10)
    assert draft_lengths(drafts, rows=max(1, len(drafts)), cost=cost, most_s=1.0) == lengths


def test_the_better_of_two_drafts_gets_more_and_no_step_is_longer_than_it_may_be() -> None:
    cost = cost_of(*[(rows, 0.010 + 0.001 * rows) for rows in (1, 2, 4, 8)] * 10)
    good, bad = draft_lengths([(15, 0.95), (15, 0.5)], rows=2, cost=cost, most_s=1.0)
    assert good > bad > 0
    assert sum(draft_lengths([(15, 0.95), (15, 0.95)], rows=2, cost=cost, most_s=0.0172)) == 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.floats(0.05, 1.0)), min_size=1, max_size=3),
    st.floats(0.0005, 0.01),
)
def test_no_other_choice_gives_more_tokens_a_second(drafts: list[tuple[int, float]], row_s: float) -> None:
    cost = cost_of(*[(rows, 0.010 + row_s * rows) for rows in (1, 2, 4, 8)] * 10)

    def rate(lengths: list[int]) -> float:
        tokens = len(drafts) + sum(
            chance**depth
            for length, (_, chance) in zip(lengths, drafts, strict=True)
            for depth in range(1, length + 1)
        )
        return tokens / (cost.step_s(len(drafts)) + sum(lengths) * cost.row_s)

    chosen = draft_lengths(drafts, rows=len(drafts), cost=cost, most_s=10.0)
    grids = np.meshgrid(*[np.arange(length + 1) for length, _ in drafts])
    for lengths in np.stack([grid.ravel() for grid in grids], axis=1).tolist():
        if all(chance**length >= 0.1 for length, (_, chance) in zip(lengths, drafts, strict=True)):
            assert rate(chosen) >= rate(lengths) * (1 - 1e-9)
