"""One answer's place in its rules: reasoning, then text or calls. Free where the rules are, held to a grammar where they say so."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from enum import Enum

import numpy as np

from stretto.conversation.stops import StopMatcher
from stretto.errors import EngineError
from stretto.grammar.follower import GrammarFollower, IdArray
from stretto.grammar.spelling import Spelling

Start = Callable[[], GrammarFollower]
"""Makes a follower at the beginning of a grammar."""

_MOST_GAP_TOKENS = 3


class Stage(Enum):
    """Where an answer is."""

    OPENING = "opening"  # it may begin with reasoning
    THINKING = "thinking"
    CLOSING = "closing"  # the end of the reasoning is written for it
    FREE = "free"
    HELD = "held"  # by a grammar, to the end


class AnswerFollower:
    """An engine's ``TokenConstraint`` for a whole answer.

    Args:
        spelling: the vocabulary.
        thinking: the marks around the reasoning, or None where there is none.
        opened: whether the answer begins within the reasoning.
        budget_tokens: most tokens of reasoning, or None.
        strict: the grammar of the text from its beginning, or None where it is free.
        calls: the grammar of calls, which holds from the moment one begins, and the texts with which one does.
        triggers, leading: those texts; ``leading`` count only where nothing was said before, whatever white space is in them.
    """

    def __init__(
        self,
        spelling: Spelling,
        *,
        thinking: tuple[str, str] | None,
        opened: bool,
        budget_tokens: int | None,
        strict: Start | None,
        calls: Start | None,
        triggers: tuple[str, ...] = (),
        leading: tuple[str, ...] = (),
    ) -> None:
        self._spelling = spelling
        self._start, self._end = (b"", b"") if thinking is None else (mark.encode() for mark in thinking)
        self._budget = budget_tokens
        self._strict = strict
        self._calls = calls
        self._leading = tuple(text.encode() for text in leading)
        self._triggers = StopMatcher([text.encode().decode("latin-1") for text in triggers])
        self._ending = StopMatcher([self._end.decode("latin-1")])
        self._held: GrammarFollower | None = None
        self._begun = b""  # what was said while it may still begin with a mark
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thought_tokens = 0
        self._forced: list[int] = []
        self._gap_tokens = 0
        self._unbarred: dict[int, IdArray] = {}
        self._stage = Stage.OPENING
        if thinking is None:
            self._begin_text(b"")
        elif opened:
            self._begin_thinking()
        elif strict is not None:
            self._held = strict()

    def allowed(self) -> IdArray | None:
        """Ids of the tokens that may come next, ascending; None for all of them.

        Raises:
            EngineError: see ``GrammarFollower.allowed``.
        """
        if self._stage is Stage.CLOSING:
            return np.array(self._forced[:1], dtype=np.intp)
        if self._stage is Stage.THINKING:
            return self._not_barred()
        if self._stage is Stage.OPENING:
            if self._strict is None:
                return None
            opening = np.array(self._spelling.beginnings(self._start[len(self._begun) :]), dtype=np.intp)
            return opening if self._held is None else np.union1d(opening, self._held.allowed())
        if self._held is None:
            return None
        allowed = self._held.allowed()
        return np.union1d(allowed, self._gap_ids()) if self._gap_tokens else allowed

    def accept(self, token_id: int) -> None:
        """Go on by a token that was drawn.

        Raises:
            EngineError: see ``allowed``.
        """
        data = self._spelling.data(token_id)
        if self._stage is Stage.CLOSING:
            self._forced.pop(0)
            if not self._forced:
                self._begin_text(b"")
        elif self._stage is Stage.THINKING:
            self._thought_tokens += 1
            self._think(data)
        elif self._stage is Stage.OPENING:
            self._begin(token_id, data)
        elif self._held is not None:
            self._hold(token_id, data)
        else:
            self._watch(data)

    # Reasoning -----------------------------------------------------------------------------------------------------

    def _begin(self, token_id: int, data: bytes) -> None:
        """The answer's first tokens: reasoning, or not. Where both begin alike, both are followed."""
        begun = (self._begun + data).lstrip()
        if self._held is not None:
            if token_id in self._held.allowed():
                self._held.accept(token_id)
            else:
                self._held = None
        if begun.startswith(self._start):
            self._begin_thinking()
            self._think(begun[len(self._start) :])
        elif self._start.startswith(begun):
            self._begun = begun
        elif self._held is not None:
            self._stage = Stage.HELD
        else:
            self._begin_text(begun)

    def _begin_thinking(self) -> None:
        self._stage = Stage.THINKING
        self._held = None
        self._ending.reset()
        self._close_if_spent()

    def _think(self, data: bytes) -> None:
        self._decoder.decode(data)
        text = data.decode("latin-1")
        found = self._ending.feed(text)
        if found is not None:
            self._begin_text(data[found[0] :])
            return
        if self._strict is None and self._triggered(data):
            return
        self._close_if_spent()

    def _close_if_spent(self) -> None:
        """End the reasoning when it has used up what it may, but never within a character."""
        if self._budget is None or self._thought_tokens < self._budget or self._decoder.getstate()[0]:
            return
        rest = self._spelling.spell(self._end[self._ending.held :])
        if rest:
            self._forced = list(rest)
            self._stage = Stage.CLOSING

    def _not_barred(self) -> IdArray | None:
        """All tokens, but for those that would end the answer before its text, or the reasoning with what the text may not begin with."""
        if self._strict is None:
            return None
        known = self._ending.held
        if known not in self._unbarred:
            barred = [
                token_id
                for token_id, rest in self._spelling.beyond(self._end[known:])
                if rest.strip() and self._started(self._strict, rest.lstrip()) is None
            ]
            self._unbarred[known] = np.setdiff1d(
                self._spelling.going_on, np.array(barred, dtype=np.intp), assume_unique=True
            )
        return self._unbarred[known]

    # Text and calls ------------------------------------------------------------------------------------------------

    def _begin_text(self, data: bytes) -> None:
        """The text begins, with what a token of the reasoning's end has of it already."""
        self._begun = b""
        after_reasoning = self._stage is not Stage.OPENING
        if self._strict is None:
            self._stage = Stage.FREE
            self._watch(data)
            return
        self._stage = Stage.HELD
        begun = data.lstrip()
        self._held = self._started(self._strict, begun) if begun else self._strict()
        if self._held is None:
            raise EngineError(
                "The answer went on after its reasoning with what its grammar does not allow.",
                code="grammar_stuck",
                remedy="Try again.",
            )
        self._gap_tokens = _MOST_GAP_TOKENS if after_reasoning and not begun else 0

    def _hold(self, token_id: int, data: bytes) -> None:
        assert self._held is not None
        if self._gap_tokens:
            if data and not data.strip() and token_id not in self._held.allowed():
                self._gap_tokens -= 1
                return
            self._gap_tokens = 0
        self._held.accept(token_id)

    def _gap_ids(self) -> IdArray:
        """White space that may stand between the reasoning and the text."""
        found = map(self._spelling.exactly, (b"\n", b"\n\n", b" "))
        return np.array(sorted(token_id for token_id in found if token_id is not None), dtype=np.intp)

    def _watch(self, data: bytes) -> None:
        """Text that is free as long as no call begins in it."""
        if self._calls is None or not data:
            return
        if self._leading:
            self._begun = (self._begun + data).lstrip()
            dense = b"".join(self._begun.split())
            if dense.startswith(self._leading) and self._engage(self._begun):
                return
            if not any(text.startswith(dense) for text in self._leading):
                self._leading = ()
        self._triggered(data)

    def _triggered(self, data: bytes) -> bool:
        """Whether a call begins here, which then holds the rest of the answer."""
        while data and self._calls is not None:
            found = self._triggers.feed(data.decode("latin-1"))
            if found is None:
                return False
            data = data[found[0] :]
            self._triggers.reset()
            if self._engage(found[1].encode("latin-1") + data):
                return True
        return False

    def _engage(self, begun: bytes) -> bool:
        """Hold the answer to the grammar of calls, unless what has begun is none."""
        self._leading = ()
        held = None if self._calls is None else self._started(self._calls, begun)
        if held is None:
            return False
        self._held = held
        self._stage = Stage.HELD
        return True

    def _started(self, start: Start, begun: bytes) -> GrammarFollower | None:
        """A follower that has gone on by some bytes, or None where its grammar does not allow them."""
        follower = start()
        ids = self._spelling.spell(begun)
        return follower if ids is not None and follower.begin(ids) else None
