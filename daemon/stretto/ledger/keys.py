"""API keys: made here, shown once, kept as hashes.

A key has 256 bits of entropy, so one round of SHA-256 is enough: there is nothing to guess. Its name is derived from the hash, so the same
key has the same name in every store, and nothing can be learnt from a name.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "sk-stretto-"
HASHED = "sha256:"
_NAME_BYTES = 12
_HINT_CHARS = 4


def digest_of(key: bytes) -> bytes:
    """SHA-256 of a key or a token; 32 bytes."""
    return hashlib.sha256(key).digest()


def written_digest(text: str) -> bytes:
    """The digest of a secret as a file has it: ``sha256:`` and 64 hex digits, or the secret itself."""
    hexed = text.removeprefix(HASHED)
    if text.startswith(HASHED) and re.fullmatch(r"[0-9a-f]{64}", hexed):
        return bytes.fromhex(hexed)
    return digest_of(text.encode())


def name_of(digest: bytes) -> str:
    """The public name of a key: ``key_`` and 24 hex digits. It is the tenant of who uses the key."""
    return "key_" + hashlib.sha256(b"stretto key name:" + digest).digest()[:_NAME_BYTES].hex()


def hint_of(key: str) -> str:
    """What is shown of a key to tell it from others."""
    return f"{PREFIX if key.startswith(PREFIX) else ''}…{key[-_HINT_CHARS:]}"


def new_key() -> str:
    """A new key: 256 random bits, in letters, digits, ``-`` and ``_``."""
    return PREFIX + secrets.token_urlsafe(32)


def same_secret(given: bytes, digest: bytes) -> bool:
    """Whether a secret has this digest; takes the same time wherever they differ."""
    return hmac.compare_digest(digest_of(given), digest)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the guard and the biller need it.

    Attributes:
        id: its row.
        name: see ``name_of``.
        plan: whose prices it pays, or None for those of the list.
        revoked: whether it is refused.
    """

    id: int
    name: str
    digest: bytes
    label: str
    plan: str | None
    revoked: bool


class KeyRing:
    """All keys, in memory, so that a request need not wait for the disk to be let in."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._by_digest: dict[bytes, Key] = {}
        self._by_name: dict[str, Key] = {}
        for key in keys:
            self.put(key)

    def put(self, key: Key) -> None:
        """Add a key, or replace what is known of it."""
        self._by_digest[key.digest] = key
        self._by_name[key.name] = key

    def find(self, given: bytes) -> Key | None:
        """The key that this text is, revoked or not. Whoever times this learns of hashes, of which no key follows."""
        key = self._by_digest.get(digest_of(given))
        return key if key is not None and same_secret(given, key.digest) else None

    def named(self, name: str) -> Key | None:
        """The key of that name."""
        return self._by_name.get(name)

    def __len__(self) -> int:
        return len(self._by_digest)
