"""Files that are either whole or absent: written beside their place, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stretto.errors import StartupError

__all__ = ["hash_file", "move_into_place", "require_space", "storage_errors", "sync_directory", "write_whole"]

_CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable, where its file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def move_into_place(written: Path, target: Path) -> None:
    """Rename a file whose bytes are already flushed onto ``target`` of the same file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(written, target)
    sync_directory(target.parent)


def write_whole(target: Path, data: bytes) -> None:
    """Replace ``target`` by ``data`` in one step."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        move_into_place(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def hash_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, in hexadecimal; ``on_bytes`` hears how far it has come."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes is not None:
                on_bytes(done)
    return digest.hexdigest()


def require_space(directory: Path, needed_bytes: int) -> None:
    """Refuse before the first byte what cannot fit on the disk of ``directory``.

    Raises:
        StartupError: ``download_failed``, with both figures.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StartupError(
            f"{needed_bytes:,} bytes are needed in {directory}, and only {free_bytes:,} are free there.",
            code="download_failed",
            remedy="Free some space, or set STRETTO_MODELS_DIR to a directory on a larger disk.",
        )


@contextmanager
def storage_errors(directory: Path, doing: str = "written") -> Iterator[None]:
    """Turn the file system's errors below ``directory`` into one clear :class:`StartupError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            what, remedy = (
                "the disk or quota is full",
                "Free some space and pull again: what has arrived is kept.",
            )
        else:
            what, remedy = (
                str(error),
                "Check the directory's permissions, or set STRETTO_MODELS_DIR to another.",
            )
        raise StartupError(
            f"The model directory {directory} cannot be {doing}: {what}.",
            code="download_failed",
            remedy=remedy,
        ) from error
