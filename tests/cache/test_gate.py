"""The gate: each thing that turns a question into another, and each that does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.cache.gate import compare
from stretto.cache.reading import read_question

SAME = """
How do I close my account? | How can I close my account?
What is the capital of France? | Can you tell me the capital of France?
What is the capital of France? | please tell me what the capital of france is
How do I reverse a list in Python? | What is the best way to reverse a Python list?
Is it possible to get a refund? | Can I get a refund?
Why can't I log in? | Why am I not able to log in?
What is twenty-one plus 2? | What is 21 + 2?
Give me two hundred words. | Give me 200 words.
What costs 1,000 euros? | What costs 1000 euros?
Write a poem about autumn. | Could you please write me a poem about autumn
What is the difference between a list and a tuple? | Explain the difference between a tuple and a list.
Who wrote Hamlet? | Hamlet was written by whom?
What's the app's colour? | What is the color of the app?
HOW DO I CLOSE MY ACCOUNT | How do I close my account?
What does `ls -l` do? | Explain what `ls -l` does.
"""

DIFFERENT = """
figures | What is 12 times 8? | What is 12 times 9?
figures | How much is 20 percent of 50? | How much is 50 percent of 20?
figures | Is -5 negative here? | Is 5 negative here?
figures | What is 10 minus 4? | What is 10 plus 4?
figures | What is new in Python 3.11? | What is new in Python 3.12?
figures | Name three fruits. | Name four fruits.
figures | The 2nd law of motion? | The 3rd law of motion?
negation | Which foods contain gluten? | Which foods do not contain gluten?
negation | Can I pay with a card? | Can I pay without a card?
negation | Why can I log in? | Why can't I log in?
quoted | Translate "good morning" into Spanish. | Translate "good evening" into Spanish.
quoted | What does `ls -l` do? | What does `ls -a` do?
quoted | Run ```a = 1``` for me. | Run ```a = 2``` for me.
content | How do I open my account? | How do I close my account?
content | What is the capital of Austria? | What is the capital of Australia?
content | How do I install it? | How do I uninstall it?
content | What does getUserById do? | What does getUserByName do?
content | Give me a recipe for pancakes. | Give me a recipe for vegan pancakes.
content | What is the weather like in Rome? | What is the weather like in Rome in May?
content | What is on channel A? | What is on channel B?
content | Wie hoch ist der Turm? | Wie alt ist der Turm?
content | 東京の天気は? | 大阪の天気は?
particles | How do I log in? | How do I log out?
particles | Why did the price go up? | Why did the price go down?
particles | Show users with admin or editor rights. | Show users with admin and editor rights.
kind | Where is the Mona Lisa? | What is the Mona Lisa?
kind | Can I get a refund? | How do I get a refund?
content | How long do I cook it? | How do I cook it?
direction | How do I convert Celsius to Fahrenheit? | How do I convert Fahrenheit to Celsius?
direction | Is gold heavier than silver? | Is silver heavier than gold?
direction | How do I replace commas with semicolons? | How do I replace semicolons with commas?
direction | Who is an admin but not an editor? | Who is an editor but not an admin?
direction | What is legal in France but not in Spain? | What is legal in Spain but not in France?
order | Does the dog bite the man? | Does the man bite the dog?
order | Is a dog an animal? | Is an animal a dog?
order | What eats mice? | What do mice eat?
order | Who loves Anna? | Who does Anna love?
order | Did France beat Italy? | Did Italy beat France?
person | What is your name? | What is my name?
person | How do I pay you? | How do you pay me?
person | What did he say to her? | What did she say to him?
modality | Can I take aspirin? | Should I take aspirin?
modality | What should I pay? | What must I pay?
tense | Who is the president? | Who was the president?
"""


def rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.split(" | ")] for line in text.strip().splitlines()]


@pytest.mark.parametrize(("first", "second"), rows(SAME))
def test_the_same_in_other_words(first: str, second: str) -> None:
    assert compare(first, second) is None, (read_question(first), read_question(second))
    assert compare(second, first) is None


@pytest.mark.parametrize(("reason", "first", "second"), rows(DIFFERENT))
def test_what_makes_a_question_another(reason: str, first: str, second: str) -> None:
    found = compare(first, second)
    assert found is not None, (read_question(first), read_question(second))
    assert found.reason == reason
    back = compare(second, first)
    assert back is not None
    assert back.reason == reason


def test_long_texts_must_keep_their_order() -> None:
    words = [f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(40)]
    swapped = [*words[:10], words[11], words[10], *words[12:]]
    assert compare("Sort " + " ".join(words), "Sort " + " ".join(words)) is None
    found = compare("Sort " + " ".join(words), "Sort " + " ".join(swapped))
    assert found is not None
    assert found.reason == "order"


def test_texts_that_say_nothing_are_never_the_same() -> None:
    for text in ("", "?", "what is it", "please"):
        assert compare(text, text) is not None


@settings(deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_can_be_read_and_comparing_is_symmetric(first: str, second: str) -> None:
    one, other = compare(first, second), compare(second, first)
    assert (one is None) == (other is None)


SOME_WORDS = 'how do i not open close the a in to 5 7 dog man bite is paris "x" up down ?'


@settings(deadline=None)
@given(st.lists(st.sampled_from(SOME_WORDS.split()), max_size=12))
def test_a_question_is_itself_or_nothing(words: list[str]) -> None:
    text = " ".join(words)
    found = compare(text, text)
    assert found is None or found.reason == "content"
