"""Progress of a pull on stderr: one line that redraws itself on a terminal, a few whole lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from stretto.cli.output import duration_text, size_text

_STEPS = 10


class PullProgress:
    """Called as ``progress(phase, done_bytes, total_bytes)``; ``finish`` ends the redrawn line.

    Args:
        stream: where to write.
        interactive: whether it is a terminal; else a line is written for each phase and each tenth of it.
        columns: width of the terminal; asked of it when None.
        clock: monotonic seconds, for the rate.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        interactive: bool,
        columns: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interactive = interactive
        self._columns = columns
        self._clock = clock
        self._phase = ""
        self._step = -1
        self._started_s = 0.0
        self._started_bytes = 0
        self._open_line = False

    def __call__(self, phase: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show where it is."""
        if phase != self._phase or done_bytes < self._started_bytes:
            self.finish()
            self._phase, self._step = phase, -1
            self._started_s, self._started_bytes = self._clock(), done_bytes
        if self._interactive:
            self._draw(done_bytes, total_bytes)
            return
        step = done_bytes * _STEPS // total_bytes if total_bytes else 0
        if step != self._step:
            self._step = step
            self._stream.write(self._text(done_bytes, total_bytes) + "\n")
            self._stream.flush()

    def finish(self) -> None:
        """Leave what was drawn on its own line."""
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False

    def _text(self, done_bytes: int, total_bytes: int | None) -> str:
        parts = [f"{self._phase:<12}"]
        if total_bytes:
            parts.append(
                f"{100 * done_bytes // total_bytes:3d}%  {size_text(done_bytes)} of {size_text(total_bytes)}"
            )
        elif done_bytes:
            parts.append(size_text(done_bytes))
        spent_s, moved = self._clock() - self._started_s, done_bytes - self._started_bytes
        if spent_s >= 0.5 and moved > 0:
            rate = moved / spent_s
            parts.append(f"{size_text(rate)}/s")
            if total_bytes and done_bytes < total_bytes:
                parts.append(f"{duration_text((total_bytes - done_bytes) / rate)} left")
        return "  ".join(parts).rstrip()

    def _draw(self, done_bytes: int, total_bytes: int | None) -> None:
        columns = self._columns if self._columns is not None else shutil.get_terminal_size().columns
        text = self._text(done_bytes, total_bytes)
        room = columns - len(text) - 5
        if total_bytes and room >= 10:
            width = min(room, 40)
            filled = width * min(done_bytes, total_bytes) // total_bytes
            text = f"{text}  [{'#' * filled}{' ' * (width - filled)}]"
        self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
        self._stream.flush()
        self._open_line = True
