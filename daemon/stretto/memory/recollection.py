"""What is put into a prompt of what is remembered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.memory.entry import RECALL_CHARS, Entry

_NOTES_HEAD = "Notes to keep in mind:"
_EXCHANGES_HEAD = "From earlier conversations:"


@dataclass(frozen=True, slots=True)
class Recollection:
    """What was recalled for one request.

    Attributes:
        text: for the prompt; at most ``RECALL_CHARS`` characters.
        notes, exchanges: the entries in it, oldest first.
    """

    text: str
    notes: tuple[Entry, ...]
    exchanges: tuple[Entry, ...]


def fitting_notes(notes: Sequence[Entry]) -> tuple[Entry, ...]:
    """Those of the notes (oldest first) that have room in a prompt: the newest first come first, none is cut."""
    left = RECALL_CHARS - len(_NOTES_HEAD)
    kept = []
    for note in reversed(notes):
        size = len(_note_text(note))
        if size <= left:
            left -= size
            kept.append(note)
    return tuple(reversed(kept))


def recollect(notes: Sequence[Entry], exchanges: Sequence[Entry]) -> Recollection | None:
    """Notes first, then the exchanges in the order of their relevance as long as there is room; None when there is nothing.

    Args:
        notes: all of the session, oldest first.
        exchanges: most relevant first.
    """
    kept_notes = fitting_notes(notes)
    parts = [_NOTES_HEAD + "".join(map(_note_text, kept_notes))] if kept_notes else []
    left = RECALL_CHARS - sum(map(len, parts)) - len(_EXCHANGES_HEAD) - 2 * len(parts)
    kept: list[Entry] = []
    for exchange in exchanges:
        size = len(_exchange_text(exchange))
        if size <= left:
            left -= size
            kept.append(exchange)
    kept.sort(
        key=lambda entry: exchanges.index(entry), reverse=True
    )  # the most relevant stands nearest to the question
    if kept:
        parts.append(_EXCHANGES_HEAD + "".join(map(_exchange_text, kept)))
    if not parts:
        return None
    return Recollection("\n\n".join(parts), kept_notes, tuple(kept))


def _note_text(note: Entry) -> str:
    return f"\n- {note.text}"


def _exchange_text(exchange: Entry) -> str:
    return f"\n\nUser: {exchange.text}\nAssistant: {exchange.answer}"
