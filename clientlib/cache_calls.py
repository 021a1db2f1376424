"""The calls of the answer cache, as data. No I/O."""

from __future__ import annotations

from urllib.parse import urlencode

from clientlib.exchange import Call
from clientlib.http1 import Head
from clientlib.replies import JsonObject, as_int, as_list, as_object, parse_object


def cache_stats_call() -> Call[JsonObject]:
    """``GET /admin/cache``."""
    return Call("GET", "/admin/cache", parse_object)


def cache_clear_call(tenant: str | None) -> Call[int]:
    """``DELETE /admin/cache``."""
    return Call("DELETE", f"/admin/cache{_query(tenant=tenant)}", _parse_deleted)


def cache_entries_call(limit: int, before: int | None, tenant: str | None) -> Call[list[JsonObject]]:
    """``GET /admin/cache/entries``."""
    return Call(
        "GET", f"/admin/cache/entries{_query(limit=limit, before=before, tenant=tenant)}", _parse_entries
    )


def cache_entry_call(entry_id: int) -> Call[JsonObject]:
    """``GET /admin/cache/entries/{id}``."""
    return Call("GET", f"/admin/cache/entries/{int(entry_id)}", parse_object)


def _query(**fields: str | int | None) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _parse_entries(head: Head, body: bytes) -> list[JsonObject]:
    page = parse_object(head, body)
    return [as_object(entry, "data[]") for entry in as_list(page.get("data"), "data")]


def _parse_deleted(head: Head, body: bytes) -> int:
    return as_int(parse_object(head, body).get("deleted"), "deleted")
