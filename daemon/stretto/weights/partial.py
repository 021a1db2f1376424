"""A file that has arrived in part: what it is a part of, how it may be resumed, and what it must hash to.

``NAME.part`` has the bytes, ``NAME.part.json`` the validators (RFC 9110, section 8.8) they came with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto.weights.durable import write_whole

__all__ = [
    "Digest",
    "Download",
    "Hashes",
    "OnBytes",
    "Validators",
    "discard",
    "read_through",
    "read_validators",
    "size_of",
    "validators_file",
    "write_validators",
]

_CHUNK_BYTES = 1 << 18

# Hears how many bytes of the file are here, and of how many (None: unknown).
OnBytes = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Digest:
    """What a file must hash to: an algorithm of hashlib, or ``git-blob-sha1`` (SHA-1 with git's blob header)."""

    algorithm: str
    hexadecimal: str


@dataclass(frozen=True)
class Download:
    """A file to get. ``size_bytes`` and ``digest`` are demands; None where the source states none."""

    url: str
    label: str
    size_bytes: int | None = None
    digest: Digest | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What makes a partial file on disk a part of this very file. The URL is hashed: it may hold a token."""
        if self.digest is not None:
            return f"{self.digest.algorithm}:{self.digest.hexadecimal}"
        return "url:" + hashlib.sha256(self.url.encode()).hexdigest()


@dataclass(frozen=True)
class Validators:
    """What the server said of the version of the file that the partial bytes belong to."""

    etag: str | None
    last_modified: str | None
    total_bytes: int | None

    @property
    def if_range(self) -> str | None:
        """The validator that may stand in ``If-Range``: a strong ETag, else the date (RFC 9110, 13.1.5)."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified


class Hashes:
    """SHA-256 for the manifest, and whatever the source promised."""

    def __init__(self, item: Download) -> None:
        self._sha256 = hashlib.sha256()
        self._expected = item.digest
        self._other: hashlib._Hash | None = None
        if item.digest is not None and item.digest.algorithm == "git-blob-sha1":
            if item.size_bytes is None:
                raise ValueError("a git blob's hash needs its size")
            self._other = hashlib.sha1(b"blob %d\0" % item.size_bytes, usedforsecurity=False)
        elif item.digest is not None and item.digest.algorithm != "sha256":
            self._other = hashlib.new(item.digest.algorithm)

    def update(self, data: bytes) -> None:
        """Take in the next bytes of the file."""
        self._sha256.update(data)
        if self._other is not None:
            self._other.update(data)

    @property
    def sha256(self) -> str:
        """SHA-256 so far, in hexadecimal."""
        return self._sha256.hexdigest()

    @property
    def found(self) -> str:
        """The hash that the source promised, as it was found."""
        return self.sha256 if self._other is None else self._other.hexdigest()

    @property
    def right(self) -> bool:
        """Whether the promise, if there was one, is kept."""
        return self._expected is None or self._expected.hexadecimal.lower() == self.found


def read_validators(part: Path, item: Download) -> Validators | None:
    """The validators of a partial file, or None when it cannot safely be resumed."""
    try:
        document = json.loads(validators_file(part).read_bytes())
        if document["identity"] != item.identity or not part.is_file():
            return None
        found = Validators(document["etag"], document["last_modified"], document["total_bytes"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    # With nothing to compare, not even a hash at the end, a changed file would go unseen.
    return found if found.if_range is not None or item.digest is not None else None


def write_validators(part: Path, item: Download, found: Validators) -> None:
    """Remember, durably, what the bytes that are about to arrive are part of."""
    document = {
        "identity": item.identity,
        "etag": found.etag,
        "last_modified": found.last_modified,
        "total_bytes": found.total_bytes,
    }
    write_whole(validators_file(part), json.dumps(document).encode())


def validators_file(part: Path) -> Path:
    """Where the validators of ``part`` stand."""
    return part.with_name(part.name + ".json")


def discard(part: Path) -> None:
    """Forget a partial file."""
    part.unlink(missing_ok=True)
    validators_file(part).unlink(missing_ok=True)


def read_through(path: Path, hashes: Hashes, on_bytes: OnBytes) -> int:
    """Hash what is already on disk; returns its size in bytes."""
    done_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hashes.update(chunk)
            done_bytes += len(chunk)
            on_bytes(done_bytes, None)
    return done_bytes


def size_of(path: Path) -> int:
    """Size in bytes, 0 where there is no file."""
    return path.stat().st_size if path.is_file() else 0
