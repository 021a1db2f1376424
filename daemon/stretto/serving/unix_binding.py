"""The daemon's Unix socket: private, never stolen, nothing to clean by hand after a crash."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from pathlib import Path
from types import TracebackType

from stretto.errors import StartupError
from stretto.serving.lock_file import LockFile, LockHeld

_LONGEST_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_BACKLOG = 128
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnixBinding:
    """A listening socket, its path and the lock that makes both ours. Use as a context manager, or ``close`` it.

    Attributes:
        socket: listening, mode 0600.
        path: where clients find it.
    """

    def __init__(self, sock: socket.socket, path: Path, lock: LockFile) -> None:
        self.socket = sock
        self.path = path
        self._lock = lock
        self._inode = _inode(path)

    def close(self) -> None:
        """Close the socket, remove its path if it is still our own, and release the lock. Idempotent."""
        self.socket.close()
        if self._inode is not None and _inode(self.path) == self._inode:
            self.path.unlink(missing_ok=True)
        self._inode = None
        self._lock.close()

    def __enter__(self) -> UnixBinding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def bind_unix(path: Path) -> UnixBinding:
    """Listen on a Unix socket that only our own user can reach.

    Its directory is made with mode 0700 if there is none, and must be ours and writable by us alone. A lock file beside the
    socket (``NAME.lock``) decides who owns the path; only its holder may replace a socket that a killed daemon left.

    Raises:
        StartupError: ``already_running`` with the other daemon's process id, or ``bind_failed`` with the reason.
    """
    path = Path(os.path.abspath(path))
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH_BYTES:
        raise _failed(
            path,
            f"the path has {length} bytes, and the system allows {_LONGEST_PATH_BYTES}",
            "Choose a shorter one with --socket.",
        )
    _prepare_directory(path)
    lock = _take_lock(path)
    try:
        _clear_way(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind_private(sock, path)
            sock.listen(_BACKLOG)
            return UnixBinding(sock, path, lock)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        lock.close()
        raise _failed(path, error.strerror or str(error), "Choose another path with --socket.") from error
    except BaseException:
        lock.close()
        raise


def _prepare_directory(path: Path) -> None:
    directory = path.parent
    try:
        for ancestor in reversed([directory, *directory.parents]):
            if not ancestor.exists():
                ancestor.mkdir(0o700)
                ancestor.chmod(0o700)  # whatever the umask took away
        found = directory.stat()
    except OSError as error:
        reason = f"its directory {directory} cannot be made ({error.strerror})"
        raise _failed(path, reason, "Choose another path with --socket.") from error
    if not stat.S_ISDIR(found.st_mode):
        raise _failed(path, f"{directory} is not a directory", "Choose another path with --socket.")
    if found.st_uid != os.geteuid():
        reason = f"its directory {directory} belongs to user {found.st_uid}, not to us ({os.geteuid()})"
        raise _failed(path, reason, "Choose a directory of your own with --socket.")
    if found.st_mode & _OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        reason = (
            f"others may write to its directory {directory} (mode {mode:04o}) and could replace the socket"
        )
        raise _failed(path, reason, f"Run chmod 700 {directory}, or choose another path with --socket.")


def _take_lock(path: Path) -> LockFile:
    lock_path = path.with_name(path.name + ".lock")
    try:
        return LockFile(lock_path)
    except LockHeld as held:
        who = f"process {held.pid}" if held.pid is not None else "another process"
        raise StartupError(
            f"A daemon is already running on {path} ({who}).",
            code="already_running",
            remedy="Use that one, stop it with `stretto stop`, or give this one another --socket.",
        ) from held
    except OSError as error:
        reason = f"the lock file {lock_path} cannot be opened ({error.strerror})"
        raise _failed(path, reason, "Choose another path with --socket.") from error


def _clear_way(path: Path) -> None:
    """Remove a socket that nobody answers on. Only called with the lock held."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _failed(
            path, "something that is not a socket is in the way", "Remove it, or choose another --socket."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        refused = probe.connect_ex(os.fsencode(path)) in (errno.ECONNREFUSED, errno.ENOENT)
    if not refused:
        raise StartupError(
            f"Another program answers on {path}, though it does not hold the lock file.",
            code="already_running",
            remedy="Stop that program, or choose another path with --socket.",
        )
    path.unlink(missing_ok=True)


def _bind_private(sock: socket.socket, path: Path) -> None:
    if sys.platform == "linux":
        # The mode of the unbound socket is the mode its path gets, so there is no moment in which others could connect.
        os.fchmod(sock.fileno(), 0o600)
    sock.bind(os.fsencode(path))
    path.chmod(0o600)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _failed(path: Path, reason: str, remedy: str) -> StartupError:
    return StartupError(
        f"Cannot listen on the Unix socket {path}: {reason}.", code="bind_failed", remedy=remedy
    )
