"""Reading the text of a call as it arrives, in small steps that wait for more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

MOST_HELD_CHARS = 1 << 16
"""Longest beginning of a call that is held back before it is known to be one."""

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A reader: it yields when it needs more text, and returns what it read."""


class NotACall(Exception):
    """The text is no call, or none any more."""


class CutOff(NotACall):
    """The text ended before the call did, or within a mark."""


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins, of the function ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the call's arguments, as JSON text."""

    text: str


CallPiece = CallOpened | CallArguments


class Scanner:
    """Text that grows, and a place in it.

    What was read for good is committed: should the text turn out to be no call, only what comes after counts as text. A call that was
    opened is committed up to there. What an unfinished call has beyond that when the text ends is part of how it is written, and no text.

    Attributes:
        pieces: what was found and not yet fetched.
        closed: no more text will come.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = ""
        self._at = 0
        self._committed = 0
        self._inside = False
        self.pieces: list[CallPiece] = []
        self.closed = False

    def feed(self, text: str) -> None:
        """More text."""
        self._text += text

    @property
    def committed_chars(self) -> int:
        """How much of the text was read for good."""
        return self._committed

    @property
    def rest(self) -> str:
        """The text that was not read for good."""
        return self._text[self._committed :]

    def commit(self) -> None:
        """All that was read so far belongs to a call."""
        self._committed = self._at

    def end_call(self) -> None:
        """The call is over: its end was read, or it needs none."""
        self.commit()
        self._inside = False

    @property
    def unfinished(self) -> bool:
        """Whether the text ended within a call, so that its rest is not text."""
        return self._committed > 0 and self._inside

    # What a dialect says of a call ---------------------------------------------------------------------------------

    def open(self, name: str) -> None:
        """A call begins here.

        Raises:
            NotACall: no such function was offered.
        """
        if name not in self._names:
            raise NotACall
        self.pieces.append(CallOpened(name))
        self._inside = True
        self.commit()

    def emit(self, text: str) -> None:
        """A piece of the arguments was read."""
        if text:
            self.pieces.append(CallArguments(text))
            self.commit()

    # Steps ---------------------------------------------------------------------------------------------------------

    def more(self) -> Steps[None]:
        """Wait for more text.

        Raises:
            CutOff: there is no more.
            NotACall: too much is held back already.
        """
        if self.closed:
            raise CutOff
        if self._at - self._committed > MOST_HELD_CHARS:
            raise NotACall
        yield

    def peek(self) -> Steps[str]:
        """The next character, which stays unread."""
        while self._at >= len(self._text):
            yield from self.more()
        return self._text[self._at]

    def next(self) -> Steps[str]:
        """The next character."""
        character = yield from self.peek()
        self._at += 1
        return character

    def spaces(self) -> Steps[None]:
        """White space, if there is any. The end of the text ends it too."""
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text) or self.closed:
                return
            yield from self.more()

    def take(self, *texts: str) -> Steps[str]:
        """One of some texts; of those that begin alike, the longest. An empty one is taken where nothing else matches.

        Raises:
            NotACall: something else is there.
        """
        while True:
            ahead = self._text[self._at : self._at + max(map(len, texts))]
            open_ones = [text for text in texts if text.startswith(ahead) and len(text) > len(ahead)]
            if open_ones and not self.closed:
                yield from self.more()
                continue
            found = [text for text in texts if ahead.startswith(text)]
            if not found:
                if not open_ones:
                    raise NotACall
                # A mark that was cut off says nothing that the calls before it have not said.
                self._inside = self._committed > 0
                raise CutOff
            longest = max(found, key=len)
            self._at += len(longest)
            return longest

    def until(self, *ends: str) -> Steps[tuple[str, str]]:
        """The text before the first of ``ends``, and which it was; both are read."""
        pattern = re.compile("|".join(map(re.escape, ends)))
        while True:
            found = pattern.search(self._text, self._at)
            if found is not None:
                text = self._text[self._at : found.start()]
                self._at = found.end()
                return text, found[0]
            yield from self.more()

    def until_any(self, ends: str) -> Steps[str]:
        """The text before the first of some characters, which stays unread."""
        start = self._at
        while (yield from self.peek()) not in ends:
            self._at += 1
        return self._text[start : self._at]

    def stream_until(self, end: str, *, change: Callable[[str], str], hold: str = "") -> Steps[None]:
        """The text before ``end``, emitted as it comes, changed piece by piece. One ``hold`` right before the end belongs to the end."""
        whole = hold + end
        while True:
            found = self._text.find(end, self._at)
            if found >= 0:
                text = (
                    self._text[self._at : found].removesuffix(hold) if hold else self._text[self._at : found]
                )
                self._at = found + len(end)
                self.emit(change(text))
                self.commit()
                return
            ready = len(self._text) - partial_chars(self._text[self._at :], (end, whole))
            text, self._at = self._text[self._at : ready], ready
            self.emit(change(text))
            yield from self.more()

    def step_back(self, chars: int) -> None:
        """Unread some characters that were just read."""
        self._at -= chars

    def string(self) -> Steps[str]:
        """A JSON string, from its opening quote to its closing one; the text it stands for."""
        raw = yield from self._raw_string()
        try:
            value = json.loads(raw, strict=False)
        except ValueError:
            raise NotACall from None
        return str(value)

    def value(self) -> Steps[Any]:
        """Any JSON value, read whole.

        Raises:
            NotACall: it is none.
        """
        start = self._at
        if (yield from self.peek()) in '{["':
            yield from self._balanced(emit=False)
        else:
            while (yield from self._inside_scalar()):
                self._at += 1
        try:
            return json.loads(self._text[start : self._at], strict=False)
        except (ValueError, RecursionError):
            raise NotACall from None

    def arguments(self) -> Steps[None]:
        """The arguments of the open call: a JSON object, emitted as it comes; or one inside a JSON string, or null, which means none.

        A line break or the like inside a string, which JSON has no place for, is emitted as its escape.
        """
        first = yield from self.peek()
        if first == "{":
            yield from self._balanced(emit=True)
        elif first == '"':
            inner = yield from self.string()
            self.emit(inner if inner.strip() else "{}")
        elif first == "n":
            yield from self.take("null")
            self.emit("{}")
        else:
            raise NotACall

    def _raw_string(self) -> Steps[str]:
        start = self._at
        yield from self.take('"')
        while True:
            character = yield from self.next()
            if character == "\\":
                yield from self.next()
            elif character == '"':
                return self._text[start : self._at]

    def _inside_scalar(self) -> Steps[bool]:
        while self._at >= len(self._text):
            if self.closed:
                return False
            yield from self.more()
        character = self._text[self._at]
        return character.isalnum() or character in "+-."

    def _balanced(self, *, emit: bool) -> Steps[None]:
        """From an opening bracket or quote to where it is closed."""
        depth, in_string, escaped, sent = 0, False, False, self._at
        while True:
            if self._at >= len(self._text):
                if emit:
                    self._send(sent)
                    sent = self._at
                yield from self.more()
                continue
            character = self._text[self._at]
            self._at += 1
            if escaped:
                escaped = False
            elif in_string:
                if character == "\\":
                    escaped = True
                elif character == '"':
                    in_string = False
            elif character == '"':
                in_string = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
            if emit and in_string and character < " ":
                self._send(sent, self._at - 1)
                self.emit(json.dumps(character)[1:-1])
                sent = self._at
            if not depth and not in_string:
                if emit:
                    self._send(sent)
                return

    def _send(self, start: int, end: int | None = None) -> None:
        self.emit(self._text[start : self._at if end is None else end])


def partial_chars(text: str, marks: Collection[str]) -> int:
    """How much of a text's end is the beginning of one of some marks, and not all of it."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[-size:]
        if any(mark.startswith(end) and len(mark) > size for mark in marks):
            return size
    return 0


def escaped(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
