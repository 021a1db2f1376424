"""Which part of an answer is reasoning, which is text, and which is calls of functions; from text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from stretto.conversation.messages import ToolSpec
from stretto.conversation.reasoning import ReasoningFormat
from stretto.conversation.tool_dialects import (
    CallArguments,
    CallOpened,
    CutOff,
    NotACall,
    Scanner,
    ToolDialect,
    partial_chars,
)


@dataclass(frozen=True, slots=True)
class Words:
    """Text of the answer: a stretch of what was read, which begins at character ``start`` of it."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


Piece = Words | Thought | CallOpened | CallArguments


class Channel(Enum):
    """Where a reader is. FRESH: nothing was said yet since the beginning, the reasoning or a call."""

    FRESH = "fresh"
    THINKING = "thinking"
    TEXT = "text"
    CALL = "call"


class ChannelReader:
    """Takes an answer's raw text and tells its channels apart. However the text is cut into pieces, the same comes out.

    No text is lost: what is in none of the other channels is text, and so is a call that turns out to be none. Marks are not text, nor is
    the white space next to them. A call within the reasoning counts, if ``calls_in_reasoning``: models forget to end it.

    Args:
        reasoning: the model's, or None.
        opened: whether the prompt ended within the reasoning.
        dialect: of the calls, or None when there can be none.
        tools: the functions that may be called.
        calls_in_reasoning: see above.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None = None,
        opened: bool = False,
        dialect: ToolDialect | None = None,
        tools: Sequence[ToolSpec] = (),
        calls_in_reasoning: bool = True,
    ) -> None:
        self._reasoning = reasoning
        self._dialect = dialect if tools else None
        self._tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools}
        openers = () if self._dialect is None else self._dialect.openers
        self._leading = () if self._dialect is None else self._dialect.leading
        self._starts = () if reasoning is None else (reasoning.start, *reasoning.answers)
        self._end = () if reasoning is None else (reasoning.end,)
        self._marks = {
            Channel.TEXT: openers,
            Channel.THINKING: (openers if calls_in_reasoning else ()) + self._end,
        }
        self._patterns = {channel: _any_of(marks) for channel, marks in self._marks.items()}
        opened = opened and reasoning is not None
        self._channel = Channel.THINKING if opened else Channel.FRESH
        self._trimming = opened  # whether white space here belongs to a mark before it
        self._spoken = False  # whether there was text
        self._buffer = ""
        self._start = 0  # of the buffer, in the whole text
        self._call: _Call | None = None
        self._spans: list[tuple[int, int | None]] = [(0, None)] if opened else []

    @property
    def in_text(self) -> bool:
        """Whether what comes next may be text."""
        return self._channel in (Channel.FRESH, Channel.TEXT)

    def is_reasoning(self, position: int) -> bool:
        """Whether a character that was read belongs to the reasoning, marks included."""
        return any(start <= position and (end is None or position < end) for start, end in self._spans)

    def feed(self, text: str) -> list[Piece]:
        """Go on with ``text``; gives what is certain now."""
        return self._read(text, last=False)

    def finish(self) -> list[Piece]:
        """The text has ended: gives what was held back."""
        return self._read("", last=True)

    def _read(self, text: str, *, last: bool) -> list[Piece]:
        pieces: list[Piece] = []
        self._buffer += text
        steps = {
            Channel.FRESH: self._read_beginning,
            Channel.THINKING: self._read_on,
            Channel.TEXT: self._read_on,
            Channel.CALL: self._read_call,
        }
        while steps[self._channel](pieces, last):
            pass
        return pieces

    def _read_beginning(self, pieces: list[Piece], last: bool) -> bool:
        """Decide what begins; like every step, it says whether there may be more to do without more text."""
        if not self._buffer:
            return False
        begun = self._buffer.lstrip()
        gap = len(self._buffer) - len(begun)
        for mark in self._starts:
            if begun.startswith(mark):
                if mark == self._starts[0]:
                    self._spans.append((self._start, None))
                    self._channel = Channel.THINKING
                self._take(gap + len(mark))
                self._trimming = True
                return True
        for mark in self._leading:
            if begun.startswith(mark):
                self._begin_call(gap, mark)
                return True
        if not last and (
            not begun or any(mark.startswith(begun) for mark in (*self._starts, *self._leading))
        ):
            return False
        if self._trimming and not (begun and self._spoken):
            self._take(gap)
        self._channel = Channel.TEXT
        self._trimming = False
        return True

    def _read_on(self, pieces: list[Piece], last: bool) -> bool:
        """Text or reasoning up to the next mark."""
        if self._trimming:
            self._take(_leading_space(self._buffer))
            self._trimming = not self._buffer
        if not self._buffer:
            return False
        marks = self._marks[self._channel]
        found = self._patterns[self._channel].search(self._buffer)
        if found is None:
            end = len(self._buffer)
            if marks and not last:
                end -= partial_chars(self._buffer, marks)
                end = len(self._buffer[:end].rstrip())
            self._say(pieces, end)
            return False
        self._say(pieces, len(self._buffer[: found.start()].rstrip()))
        gap = _leading_space(self._buffer)
        if self._channel is Channel.THINKING and found[0] in self._end:
            self._take(gap + len(found[0]))
            self._spans[-1] = (self._spans[-1][0], self._start)
            self._channel = Channel.FRESH
            self._trimming = True
        else:
            self._begin_call(gap, found[0])
        return True

    def _begin_call(self, gap: int, opener: str) -> None:
        assert self._dialect is not None
        before = self._take(gap)
        scanner = Scanner(self._tools)
        steps = self._dialect.read(scanner, self._tools)
        self._call = _Call(self._channel, before, opener, self._start, scanner, steps)
        self._channel = Channel.CALL

    def _read_call(self, pieces: list[Piece], last: bool) -> bool:
        call = self._call
        assert call is not None
        call.scanner.feed(self._take(len(self._buffer)))
        call.scanner.closed = last
        cut_off = False
        try:
            next(call.steps)
            going_on = True
        except (StopIteration, NotACall) as end:
            going_on = False
            cut_off = isinstance(end, CutOff) and call.scanner.unfinished
        pieces += call.scanner.pieces
        call.scanner.pieces.clear()
        if going_on:
            return False
        self._call = None
        self._channel = Channel.THINKING if call.around is Channel.THINKING else Channel.FRESH
        self._buffer = "" if cut_off else call.scanner.rest
        self._start = call.start + call.scanner.committed_chars
        if call.scanner.committed_chars:
            self._trimming = True
            return True
        # What looked like the beginning of a call is text, and the rest is read again.
        self._buffer = call.gap + self._buffer
        self._start -= len(call.gap)
        if self._channel is Channel.FRESH:
            self._channel = Channel.TEXT
            if self._trimming and not self._spoken:
                self._take(len(call.gap))
        self._trimming = False
        self._say(pieces, len(self._buffer) - len(call.scanner.rest) + len(call.opener))
        return True

    def _say(self, pieces: list[Piece], chars: int) -> None:
        """So much of the buffer is text, or reasoning."""
        if not chars:
            return
        start = self._start
        text = self._take(chars)
        if self._channel is Channel.THINKING:
            pieces.append(Thought(text))
        else:
            pieces.append(Words(start, text))
            self._spoken = True

    def _take(self, chars: int) -> str:
        taken, self._buffer = self._buffer[:chars], self._buffer[chars:]
        self._start += chars
        return taken


@dataclass(frozen=True, slots=True)
class _Call:
    """What may be a call.

    Attributes:
        around: where it leads back to.
        gap: the white space before it.
        opener: the mark it begins with.
        start: where that is in the whole text.
    """

    around: Channel
    gap: str
    opener: str
    start: int
    scanner: Scanner
    steps: Iterator[None]


def _leading_space(text: str) -> int:
    return len(text) - len(text.lstrip())


def _any_of(marks: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)) or "(?!)")
