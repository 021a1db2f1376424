"""Finding stop strings in text that arrives in pieces.

The answer ends at the first character that completes a stop string; where several are completed by the same character, the longest
counts, so that none of it is left in the answer. This depends on the text alone, not on how it was cut into tokens, and
no token more has to be generated to decide it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings (Aho and Corasick 1975): one short step a character, whatever their number.

    Its state says how much of the text's end could still become a stop string; that much is held back. Empty strings never match.
    """

    __slots__ = ("_depth", "_fallback", "_match", "_next", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth: list[int] = [0]
        self._match: list[str | None] = [None]
        self._fallback: list[int] = [0]
        self._state = 0
        for stop in filter(None, stops):
            self._add(stop)
        self._link()

    @property
    def held(self) -> int:
        """How many characters at the end of the text so far may begin a stop string."""
        return self._depth[self._state]

    def reset(self) -> None:
        """Forget the text so far."""
        self._state = 0

    def feed(self, text: str) -> tuple[int, str] | None:
        """Go on with ``text``.

        Returns:
            None, or (how many of its characters were read, the stop string that the last of them completed).
        """
        state = self._state
        for position, character in enumerate(text):
            while state and character not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(character, 0)
            found = self._match[state]
            if found is not None:
                self._state = state
                return position + 1, found
        self._state = state
        return None

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
                self._fallback.append(0)
            state = following
        self._match[state] = stop

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                fallback = self._fallback[state]
                while fallback and character not in self._next[fallback]:
                    fallback = self._fallback[fallback]
                self._fallback[following] = self._next[fallback].get(character, 0)
                if self._match[following] is None:  # its own string is longer than any that ends within it
                    self._match[following] = self._match[self._fallback[following]]
                waiting.append(following)
