"""The calls of the credit ledger, as data. No I/O."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from clientlib.exchange import Call
from clientlib.replies import JsonObject, as_list, as_object, parse_object

if TYPE_CHECKING:
    from decimal import Decimal

    Amount = str | int | Decimal
    """US dollars, exactly: a decimal string, a whole number or a Decimal; never a float."""

_PATH = "/admin/credits"
_CREATED = frozenset({200, 201})


def keys_call(after: int | None) -> Call[JsonObject]:
    """``GET /admin/credits``: a page of keys, with ``data``, ``next_after`` and ``accounts``."""
    return Call("GET", _query(_PATH, {"limit": 1000, "after": after}), parse_object)


def key_call(key: str) -> Call[JsonObject]:
    """``GET /admin/credits/{key}``."""
    return Call("GET", _target(key), parse_object)


def create_call(
    label: str, plan: str | None, balance: Amount, idempotency_key: str | None
) -> Call[JsonObject]:
    """``POST /admin/credits``. Raises TypeError for a float."""
    wanted = {
        "label": label,
        "plan": plan,
        "balance": amount_text(balance),
        "idempotency_key": idempotency_key,
    }
    # Tried again without a key of its own, it would make a second key, whose secret nobody has seen.
    return Call(
        "POST", _PATH, parse_object, _json(wanted), idempotent=idempotency_key is not None, accept=_CREATED
    )


def give_call(
    kind: str, key: str, amount: Amount, idempotency_key: str | None, note: str
) -> Call[JsonObject]:
    """``POST /admin/credits/{key}/topup`` or ``/adjust``, with an idempotency key of our own if none is given. Raises TypeError for a
    float."""
    wanted = {
        "amount": amount_text(amount),
        "idempotency_key": idempotency_key or os.urandom(16).hex(),
        "note": note,
    }
    return Call("POST", f"{_target(key)}/{kind}", parse_object, _json(wanted))


def revoke_call(key: str) -> Call[JsonObject]:
    """``DELETE /admin/credits/{key}``."""
    return Call("DELETE", _target(key), parse_object)


def ledger_call(key: str, limit: int, before: int | None, holds: bool) -> Call[JsonObject]:
    """``GET /admin/credits/{key}/ledger``: a page of entries, with ``data`` and ``next_before``."""
    query = {"limit": limit, "before": before, "holds": "true" if holds else None}
    return Call("GET", _query(f"{_target(key)}/ledger", query), parse_object)


def page_data(page: JsonObject) -> list[JsonObject]:
    """What is listed on a page. Raises ProtocolError."""
    return [as_object(entry, "data[]") for entry in as_list(page.get("data"), "data")]


def amount_text(amount: Amount) -> str:
    """An amount as the wire has it. Raises TypeError for a float, which cannot say what it means."""
    if isinstance(amount, bool | float):
        raise TypeError(f"an amount is a str, an int or a Decimal, not {type(amount).__name__}: {amount!r}")
    return amount if isinstance(amount, str) else format(amount, "f" if not isinstance(amount, int) else "d")


def _target(key: str) -> str:
    if not key:
        raise ValueError("key is empty; list() has the ids of keys")
    return f"{_PATH}/{quote(key, safe='')}"


def _query(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode({name: value for name, value in query.items() if value is not None})}"


def _json(wanted: Mapping[str, object]) -> bytes:
    given = {name: value for name, value in wanted.items() if value is not None}
    return json.dumps(given, ensure_ascii=False).encode()
