"""The context sentence, as the clients that read it read it."""

from __future__ import annotations

import re

import pytest

from stretto.conversation import context_length_message

# What an agent's OpenAI-compatible provider looks for, and what others read out of the original service's two sentences.
AGENT = re.compile(
    r"maximum context length (?:is|of) (\d+) tokens.*?(?:resulted in|requested) ~?(\d+) tokens"
)
MESSAGES = re.compile(
    r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens\. "
    r"Please reduce the length of the messages\."
)
REQUESTED = re.compile(r"maximum context length is (\d+) tokens\. However, you requested (\d+) tokens")


@pytest.mark.parametrize(
    ("max_tokens", "needed", "own"), [(None, 9000, MESSAGES), (0, 9000, MESSAGES), (500, 9500, REQUESTED)]
)
def test_both_numbers_can_be_read(max_tokens: int | None, needed: int, own: re.Pattern[str]) -> None:
    sentence = context_length_message(8192, 9000, max_tokens)
    for pattern in (AGENT, own):
        match = pattern.search(sentence)
        assert match is not None
        assert match.groups() == ("8192", str(needed))
    assert "9000" in sentence
