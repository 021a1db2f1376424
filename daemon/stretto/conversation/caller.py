"""Who asks, and what it asks of what is kept between requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.conversation.priority import Priority

MemoryMode = Literal["on", "read", "off"]
CacheMode = Literal["on", "refresh", "off"]

DEFAULT_SESSION = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request's head says beside its body.

    Attributes:
        tenant: whose memory, answers and credits are meant, and whose prompts share what the prefix cache knows, lest the tokens that
            were found there tell what others ask; empty where nobody is told from anybody. Never a key itself.
        session: which memory of the tenant.
        memory: ``on`` recalls and records, ``read`` only recalls, ``off`` does neither.
        cache: ``on`` reads and writes the answer cache, ``refresh`` only writes, ``off`` does neither.
        priority: how urgent the head says it is; None where it says nothing of it.
        idempotency_key: a retry with the same key and the same body is the same request, or None.
    """

    tenant: str = ""
    session: str = DEFAULT_SESSION
    memory: MemoryMode = "on"
    cache: CacheMode = "on"
    priority: Priority | None = None
    idempotency_key: str | None = None
