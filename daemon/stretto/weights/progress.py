"""Progress of a pull: a callback for whoever draws the bar, called at most about ten times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, Protocol

__all__ = ["Phase", "Progress", "ProgressMeter", "no_progress"]

Phase = Literal["waiting", "resolving", "downloading", "verifying", "extracting"]


class Progress(Protocol):
    """Called on the pulling thread. An exception it raises stops the pull, which can be resumed later."""

    def __call__(self, phase: Phase, done_bytes: int, total_bytes: int | None) -> None: ...


def no_progress(phase: Phase, done_bytes: int, total_bytes: int | None) -> None:
    """For callers who draw nothing."""


class ProgressMeter:
    """Thins a stream of byte counts: the first and the last of a phase always pass, others at most one an interval."""

    def __init__(
        self, progress: Progress, *, clock: Callable[[], float] = time.monotonic, interval_s: float = 0.1
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._interval_s = interval_s
        self._phase: Phase = "resolving"
        self._total_bytes: int | None = None
        self._told_at_s = float("-inf")

    def begin(self, phase: Phase, total_bytes: int | None = None, done_bytes: int = 0) -> None:
        """Enter a phase and say so."""
        self._phase, self._total_bytes = phase, total_bytes
        self._tell(done_bytes)

    def at(self, done_bytes: int, total_bytes: int | None = None) -> None:
        """The phase has come to ``done_bytes`` (absolute; it may fall when a download starts over).

        ``total_bytes`` is for totals that only become known on the way.
        """
        if total_bytes is not None:
            self._total_bytes = total_bytes
        if done_bytes == self._total_bytes or self._clock() - self._told_at_s >= self._interval_s:
            self._tell(done_bytes)

    def _tell(self, done_bytes: int) -> None:
        self._told_at_s = self._clock()
        self._progress(self._phase, done_bytes, self._total_bytes)
