"""Giving the most likely ones of the answers that were drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from stretto.conversation.events import Done, Event
from stretto.pipeline.answer import Answer, Choice


class BestAnswer:
    """The events of an answer's best choices: for each prompt the ``n`` with the highest log-probability a token, best first.

    Which these are is known at the end, so nothing comes before that. The usage is that of all that were drawn.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._events: deque[Event] | None = None

    @property
    def prompt_tokens(self) -> int:
        """As of the answer."""
        return self._answer.prompt_tokens

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """As of the answer."""
        return self._answer.headers

    @property
    def cache_miss(self) -> object | None:
        """As of the answer."""
        return self._answer.cache_miss

    def __aiter__(self) -> BestAnswer:
        return self

    async def __anext__(self) -> Event:
        """The next event; see ``Answer``."""
        if self._events is None:
            events = [event async for event in self._answer]
            self._events = deque(self._chosen(events))
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    def take_ready(self) -> list[Event]:
        """Events that are at hand without waiting."""
        ready = list(self._events or ())
        if self._events is not None:
            self._events.clear()
        return ready

    def _chosen(self, events: Sequence[Event]) -> list[Event]:
        request = self._answer.request
        places = places_of_best(self._answer.choices, n=request.n, drawn=request.drawn)
        return [
            event if isinstance(event, Done) else replace(event, index=places[event.index])
            for event in events
            if isinstance(event, Done) or event.index in places
        ]


def places_of_best(choices: Sequence[Choice], *, n: int, drawn: int) -> dict[int, int]:
    """From the index of a choice that is given to its place among those that are; of equally likely ones the first."""
    places: dict[int, int] = {}
    for first in range(0, len(choices), drawn):
        ranked = sorted(
            choices[first : first + drawn], key=lambda choice: (-choice.mean_logprob, choice.index)
        )
        for rank, choice in enumerate(ranked[:n]):
            places[choice.index] = first // drawn * n + rank
    return places
