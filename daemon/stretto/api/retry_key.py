"""By what a request is known again when its client sends it once more. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from stretto.conversation.caller import Caller
from stretto.serving import Header

_WAITED_SHARE = 0.9
"""Of the client's time limit; one that leaves earlier did not run out of patience, but was told to leave."""


@dataclass(frozen=True, slots=True)
class RetryKey:
    """What makes a request the same as another.

    Attributes:
        tenant, path: who asks, and what.
        name: the key that the client made, or the digest.
        digest: of the body, and of what the head says beside it.
        explicit: whether the client made the key, by ``Idempotency-Key``.
        again: whether the client says that it has sent this before.
        patience_s: how long the client waits for a reply, if it says so.
    """

    tenant: str
    path: str
    name: str
    digest: bytes
    explicit: bool
    again: bool = False
    patience_s: float | None = None

    @property
    def index(self) -> tuple[str, str, bool, str]:
        """Under what to look for the request."""
        return self.tenant, self.path, self.explicit, self.name

    def comes_back(self, waited_s: float) -> bool:
        """Whether a client that left after so long is expected to send the request again."""
        return self.explicit or (self.patience_s is not None and waited_s >= self.patience_s * _WAITED_SHARE)


def retry_key(
    caller: Caller, path: str, headers: Iterable[Header], body: bytes, *, stream: bool
) -> RetryKey | None:
    """The key of a request, or None for one that no client retries by itself.

    Clients that OpenAI and Anthropic publish count their retries in a header, and retry what they got no head for. A stream's head goes out
    at once, so those of streams are not looked for; a key that the client made holds for streams too.
    """
    fields = {name: value for name, value in headers if name.startswith(b"x-stainless-")}
    count = fields.get(b"x-stainless-retry-count", b"")
    counts = count.isdigit() and not stream
    if caller.idempotency_key is None and not counts:
        return None
    seen = hashlib.blake2b(digest_size=32)
    for part in (caller.session, caller.memory, caller.cache):
        seen.update(part.encode() + b"\n")
    seen.update(body)
    digest = seen.digest()
    explicit = caller.idempotency_key is not None
    return RetryKey(
        tenant=caller.tenant,
        path=path,
        name=caller.idempotency_key or digest.hex(),
        digest=digest,
        explicit=explicit,
        again=counts and count.strip(b"0") != b"",
        patience_s=_seconds(
            fields.get(b"x-stainless-read-timeout") or fields.get(b"x-stainless-timeout") or b""
        ),
    )


def _seconds(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
