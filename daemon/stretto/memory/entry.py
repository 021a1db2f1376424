"""What is remembered: pinned notes and exchanges, and the limits of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["note", "exchange"]

NOTE_CHARS = 2000
"""Longest note; a longer one is refused."""

TURN_CHARS = 1000
"""What is kept of each side of an exchange; the rest is cut off."""

RECALL_CHARS = 4000
"""Longest text that is put into a prompt, notes and all."""

_ID_PREFIX = "mem_"


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory.

    Attributes:
        key: random, 0 to 2**63 - 1; ``id`` is how callers see it.
        kind: ``note`` or ``exchange``.
        created_us: microseconds of UTC, by a clock that may be set back.
        text: the note, or what the user said.
        answer: what was answered to it, or None for a note.
    """

    key: int
    kind: Kind
    created_us: int
    text: str
    answer: str | None = None

    @property
    def id(self) -> str:
        """``mem_`` and 16 hex digits."""
        return f"{_ID_PREFIX}{self.key:016x}"


@dataclass(frozen=True, slots=True)
class SessionCount:
    """One session, and how much it remembers."""

    tenant: str
    session: str
    notes: int
    exchanges: int
    created_us: int


def key_of(entry_id: str) -> int | None:
    """The key that an id stands for, or None when it cannot be an id."""
    digits = entry_id.removeprefix(_ID_PREFIX)
    if len(digits) != 16 or digits == entry_id or not set(digits) <= set("0123456789abcdef"):
        return None
    key = int(digits, 16)
    return key if key < 1 << 63 else None


def storable(text: str) -> str:
    """Text without what UTF-8 cannot hold: lone surrogates, which JSON can bring, become U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
