"""The file of one KV block: whole and of the model at hand, or not read at all.

Layout, little-endian: magic ``STRPFX01``; 16 bytes fingerprint of what computed it; 16 bytes digest of its chain; uint32 bytes of
tokens; uint32 layer groups; uint64 bytes of each group; uint32 CRC-32 of all that follows; tokens; the groups' KV. A file is not
flushed to the disk before it is renamed into place: one that a power failure left incomplete fails its checksum, and costs a miss.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"STRPFX01"
_HEAD = struct.Struct("<8s16s16sII")
_MOST_GROUPS = 64
_FILE_MODE = 0o600  # it holds what somebody wrote


@dataclass(frozen=True, slots=True)
class BlockFile:
    """What a file holds.

    Attributes:
        fingerprint: 16 bytes, of what computed the block.
        digest: 16 bytes, of its chain.
        tokens: token ids, int32 as bytes.
        groups: K and V, a layer group each, as the backend gave them.
    """

    fingerprint: bytes
    digest: bytes
    tokens: bytes
    groups: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return (
            _HEAD.size
            + 8 * len(self.groups)
            + 4
            + len(self.tokens)
            + sum(len(group) for group in self.groups)
        )


def write_block_file(path: Path, block: BlockFile, *, used_at_ns: int) -> None:
    """Write a block beside its place and rename it there. Its modification time is when it was last used.

    Raises:
        OSError: no room, or no right; nothing is left behind.
    """
    checksum = zlib.crc32(block.tokens)
    for group in block.groups:
        checksum = zlib.crc32(group, checksum)
    sizes = struct.pack(f"<{len(block.groups)}QI", *(len(group) for group in block.groups), checksum)
    head = _HEAD.pack(MAGIC, block.fingerprint, block.digest, len(block.tokens), len(block.groups))
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            _write_all(file.fileno(), (head + sizes, block.tokens, *block.groups))
            os.utime(file.fileno(), ns=(used_at_ns, used_at_ns))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_block_file(path: Path, fingerprint: bytes, digest: bytes, tokens: bytes) -> tuple[bytes, ...] | None:
    """The KV in a file, a layer group each; None when the file is broken, or of another model, chain or text.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        magic, of_model, of_chain, token_bytes, groups = _HEAD.unpack(head)
        if (magic, of_model, of_chain, token_bytes) != (MAGIC, fingerprint, digest, len(tokens)):
            return None
        if not 1 <= groups <= _MOST_GROUPS:
            return None
        rest = file.read(8 * groups + 4)
        if len(rest) < 8 * groups + 4:
            return None
        *sizes, expected = struct.unpack(f"<{groups}QI", rest)
        if size != _HEAD.size + len(rest) + token_bytes + sum(sizes):
            return None
        found = _read_exactly(file.fileno(), token_bytes)
        checksum = zlib.crc32(found)
        parts: list[bytes] = []
        for part_bytes in sizes:
            part = _read_exactly(file.fileno(), part_bytes)
            checksum = zlib.crc32(part, checksum)
            parts.append(part)
    return tuple(parts) if found == tokens and checksum == expected else None


def _read_exactly(descriptor: int, count: int) -> bytes:
    """So many bytes, or fewer where the file ends."""
    data = os.read(descriptor, count)
    while len(data) < count:
        more = os.read(descriptor, count - len(data))
        if not more:
            break
        data += more
    return data


def _write_all(descriptor: int, parts: Sequence[bytes]) -> None:
    left = [memoryview(part) for part in parts if part]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
