"""Reading who asks from a request's head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar, cast

from starlette.types import Scope

from stretto.conversation.caller import DEFAULT_SESSION, CacheMode, Caller, MemoryMode
from stretto.conversation.priority import PRIORITIES, Priority
from stretto.errors import Forbidden, InvalidRequest

_PREFIXES = (b"x-stretto-", b"x-fuuga-")
"""The second is what clients of Fuuga.Server send; it means the same."""
_SESSION = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_MEMORY: tuple[MemoryMode, ...] = ("on", "read", "off")
_CACHE: tuple[CacheMode, ...] = ("on", "refresh", "off")

Mode = TypeVar("Mode", bound=str)


def caller_of(scope: Scope) -> Caller:
    """The caller. The tenant is what the guard of keys wrote into the scope's state, if there is one.

    Raises:
        InvalidRequest: ``invalid_header``: a mode that is none, a name that cannot be one, a field given twice with different values.
        Forbidden: ``priority_not_allowed``: a guest wants to go before others.
    """
    tenant = scope["state"].get("tenant", "")
    return Caller(
        tenant=tenant,
        session=_matching(scope, "session", _SESSION, "1 to 128 printable ASCII characters")
        or DEFAULT_SESSION,
        memory=_mode(scope, "memory", _MEMORY),
        cache=_mode(scope, "cache", _CACHE),
        priority=_priority(scope, guest=tenant != ""),
        idempotency_key=_checked(
            "idempotency-key",
            field_of(scope, b"idempotency-key"),
            _KEY,
            "1 to 255 printable ASCII characters",
        ),
    )


def field_of(scope: Scope, *names: bytes) -> str | None:
    """The value of a header field that may have several names; None when it is absent.

    Raises:
        InvalidRequest: ``invalid_header``: it is there more than once, with different values.
    """
    values = {bytes(value).decode("latin-1").strip() for name, value in scope["headers"] if name in names}
    if len(values) > 1:
        raise InvalidRequest(
            f"The header '{names[0].decode()}' is given {len(values)} times with different values.",
            code="invalid_header",
            param=names[0].decode(),
            remedy="Send it once.",
        )
    return next(iter(values), None)


def _own(scope: Scope, name: str) -> str | None:
    return field_of(scope, *(prefix + name.encode() for prefix in _PREFIXES))


def _matching(scope: Scope, name: str, pattern: re.Pattern[str], allowed: str) -> str | None:
    return _checked(f"x-stretto-{name}", _own(scope, name), pattern, allowed)


def _checked(field: str, value: str | None, pattern: re.Pattern[str], allowed: str) -> str | None:
    if value is not None and pattern.fullmatch(value) is None:
        raise InvalidRequest(
            f"The header '{field}' is {value[:60]!r}; it must be {allowed}.",
            code="invalid_header",
            param=field,
        )
    return value


def _priority(scope: Scope, *, guest: bool) -> Priority | None:
    """The priority, if the head names one. ``high`` is the owner's: whoever has a key of the ledger is a guest."""
    priority = _given(scope, "priority", PRIORITIES)
    if priority == "high" and guest:
        raise Forbidden(
            "The header 'x-stretto-priority' is 'high', which keys of the credit ledger may not ask for.",
            code="priority_not_allowed",
            param="x-stretto-priority",
            remedy="Send normal or background, or leave it out.",
        )
    return priority


def _mode(scope: Scope, name: str, modes: Sequence[Mode]) -> Mode:
    return _given(scope, name, modes) or modes[0]


def _given(scope: Scope, name: str, modes: Sequence[Mode]) -> Mode | None:
    value = _own(scope, name)
    if value is None:
        return None
    if value.lower() not in modes:
        raise InvalidRequest(
            f"The header 'x-stretto-{name}' is {value[:60]!r}; it must be one of {', '.join(modes)}.",
            code="invalid_header",
            param=f"x-stretto-{name}",
        )
    return cast("Mode", value.lower())
