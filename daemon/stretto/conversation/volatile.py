"""Lines that clients change from request to request at the top of a system prompt, and that tell the model nothing.

Left in, they would make every request of such a client a new text from its first token on, and nothing known could be reused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from stretto.conversation.messages import Message, TextPart

_LINES = (
    # Claude Code: the version and a nonce, as the first block of its system prompt.
    re.compile(r"x-anthropic-billing-header:[^\n]*(?:\n|\Z)"),
)


def without_volatile_lines(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages; from the beginning of system messages, the lines of the table are taken out. One that is empty then is left out."""
    kept = []
    for message in messages:
        if message.role != "system":
            kept.append(message)
            continue
        first = next((index for index, part in enumerate(message.content) if part.text), 0)
        found = next(
            (
                m
                for line in _LINES
                for part in message.content[first : first + 1]
                if (m := line.match(part.text))
            ),
            None,
        )
        if found is None:
            kept.append(message)
            continue
        rest = TextPart(message.content[first].text[found.end() :])
        content = tuple(part for part in (rest, *message.content[first + 1 :]) if part.text)
        if content:
            kept.append(replace(message, content=content))
    return tuple(kept)
