"""A disk of a few hundred KiB, to be filled or made read-only. Needs the right to mount one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(directory: Path, size: str = "512k") -> Iterator[None]:
    """Mount one on a new directory for the length of a block; skips the test where we may not."""
    directory.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("a disk can be mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def make_read_only(directory: Path, read_only: bool = True) -> None:
    """For everybody, root included; nobody may have a file of it open for writing."""
    how = "ro" if read_only else "rw"
    subprocess.run(["mount", "-o", f"remount,{how}", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Leave no room on the disk; returns the file that takes it."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    return filler
