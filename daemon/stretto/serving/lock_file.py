"""A lock that dies with its process: flock on a small file that holds the owner's process id."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType


class LockHeld(Exception):
    """Another process holds the lock; ``pid`` is its id, or None when it has not written it yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is locked by process {pid if pid is not None else 'unknown'}")
        self.path = path
        self.pid = pid


class LockFile:
    """Hold the lock from construction to ``close``.

    The kernel releases it when the process ends, however it ends, so nothing is ever stale. The file itself stays: removing it
    would let two processes lock two files of the same name.

    Raises:
        LockHeld: another process (or another LockFile of this one) has it.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(self._fd)
            self.close()
            raise LockHeld(path, pid) from None
        except BaseException:
            self.close()
            raise
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LockFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None
