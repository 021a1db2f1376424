"""How urgent a request is, to the one who waits for it."""

from __future__ import annotations

from typing import Literal

Priority = Literal["high", "normal", "background"]

PRIORITIES: tuple[Priority, ...] = ("high", "normal", "background")
"""The most urgent first. ``background`` is for work that nobody waits for: titles, summaries, batches."""
