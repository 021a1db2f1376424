"""Session memory: what was said before and pinned notes, recalled into later prompts of the same session."""

from stretto.memory.entry import NOTE_CHARS, RECALL_CHARS, TURN_CHARS, Entry, SessionCount
from stretto.memory.meaning import Meaning
from stretto.memory.memory import SessionMemory
from stretto.memory.recollection import Recollection
from stretto.memory.tables import SCHEMA

__all__ = [
    "NOTE_CHARS",
    "RECALL_CHARS",
    "SCHEMA",
    "TURN_CHARS",
    "Entry",
    "Meaning",
    "Recollection",
    "SessionCount",
    "SessionMemory",
]
