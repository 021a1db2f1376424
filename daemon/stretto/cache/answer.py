"""An answer that is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stretto.conversation.events import Done, Event, Finish, TextDelta, Usage


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A plain, complete answer, with what it cost.

    Attributes:
        text: never empty.
        stop_string: the stop string that ended it, or None where the model did.
        prompt_tokens, completion_tokens, cached_tokens: of the request that it was made for; who is given it again pays the same.
    """

    text: str
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """What it cost."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def events(self) -> tuple[Event, ...]:
        """The answer again: all its text as one piece."""
        return (
            TextDelta(0, self.text),
            Finish(0, "stop", self.stop_string),
            Done(self.usage),
        )


def cacheable_answer(events: Iterable[Event]) -> CachedAnswer | None:
    """The answer that a stream of events made, or None when it is not one to keep: cut short, empty, or more than text."""
    texts: list[str] = []
    finish: Finish | None = None
    usage: Usage | None = None
    for event in events:
        if isinstance(event, TextDelta):
            texts.append(event.text)
        elif isinstance(event, Finish):
            finish = event
        elif isinstance(event, Done):
            usage = event.usage
        else:
            return None
    text = "".join(texts)
    if finish is None or usage is None or finish.reason != "stop" or not text.strip():
        return None
    return CachedAnswer(
        text, finish.stop_string, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    )
