"""The calls of session memory, as data. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from clientlib.exchange import Call
from clientlib.http1 import Head
from clientlib.replies import JsonObject, as_int, as_list, as_object, parse_object

DEFAULT_SESSION = "default"
"""The session of requests that name none."""

_CREATED = frozenset({200, 201})


def sessions_call() -> Call[list[JsonObject]]:
    """``GET /admin/memory/sessions``."""
    return Call("GET", "/admin/memory/sessions", _parse_data)


def page_call(session: str, tenant: str, after: str | None) -> Call[JsonObject]:
    """``GET /admin/memory``: a page of a session, with ``data``, ``has_more`` and ``last_id``."""
    more = {} if after is None else {"after": after}
    return Call("GET", _target("", session, tenant, more), parse_object)


def add_call(text: str, session: str, tenant: str) -> Call[JsonObject]:
    """``POST /admin/memory``."""
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    return Call("POST", _target("", session, tenant), parse_object, body, idempotent=False, accept=_CREATED)


def forget_call(entry_id: str, session: str, tenant: str) -> Call[JsonObject]:
    """``DELETE /admin/memory/{id}``."""
    if not entry_id:
        raise ValueError("entry_id is empty; memory() lists the ids")
    return Call("DELETE", _target(f"/{quote(entry_id, safe='')}", session, tenant), parse_object)


def forget_session_call(session: str, tenant: str) -> Call[int]:
    """``DELETE /admin/memory``."""
    return Call("DELETE", _target("", session, tenant), _parse_deleted)


def page_entries(page: JsonObject) -> list[JsonObject]:
    """The entries of a page. Raises ProtocolError."""
    return [as_object(entry, "data[]") for entry in as_list(page.get("data"), "data")]


def _target(below: str, session: str, tenant: str, more: Mapping[str, str] | None = None) -> str:
    query = {"session": session, **({"tenant": tenant} if tenant else {}), **(more or {})}
    return f"/admin/memory{below}?{urlencode(query)}"


def _parse_data(head: Head, body: bytes) -> list[JsonObject]:
    return page_entries(parse_object(head, body))


def _parse_deleted(head: Head, body: bytes) -> int:
    return as_int(parse_object(head, body).get("deleted"), "deleted")
