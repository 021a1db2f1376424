"""A command on a pseudo-terminal of its own, typed at and read from, within a limit."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

LIMIT_S = 90.0

# A new session's leader has no controlling terminal until it takes one; without it, Ctrl-C is only a byte.
_TAKE_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """See the module's text. ``seen`` is all that was shown."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self.seen = ""
        self._looked = 0

    def type(self, text: str) -> None:
        """Press keys; ``\\x03`` is Ctrl-C, ``\\x04`` Ctrl-D, ``\\r`` Return."""
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Read until ``text`` is shown after what was looked for before; returns what came up to it."""
        deadline = time.monotonic() + LIMIT_S
        while (found := self.seen.find(text, self._looked)) < 0:
            assert self._read(deadline), f"{text!r} was not shown; seen: {self.seen[self._looked :]!r}"
        start, self._looked = self._looked, found + len(text)
        return self.seen[start:found]

    def wait(self) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return self.process.wait(LIMIT_S)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came any more; seen: {self.seen[self._looked :]!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux: EIO once the other end is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def terminal(arguments: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run ``stretto ARGUMENTS`` on a terminal for the block."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, "-m", "stretto", *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "dumb", "COLUMNS": "200", "LINES": "50"},
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)
        os.close(ours)
