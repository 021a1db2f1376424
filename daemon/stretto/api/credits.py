"""``/admin/credits``: keys and their credits, for an administrator; and ``GET /v1/credits``, for who has a key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api.bodies import read_checked
from stretto.api.endpoint import Endpoint
from stretto.api.query import query_of, whole_number
from stretto.api.replies import send_json
from stretto.errors import AuthenticationError, InvalidRequest
from stretto.ledger import GivenKind, KeyView, Ledger, Line, format_usd, parse_usd

_PAGE = 100
_LARGEST_PAGE = 1000
_LAST_ROW = 999_999_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CreditRoutes:
    """The routes of the ledger. Whoever gets here may: the guards are outside.

    Args:
        ledger: asked and told.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def routes(self) -> list[BaseRoute]:
        """For a router."""
        key = "/admin/credits/{key}"
        return [
            Route("/v1/credits", Endpoint(self.own), methods=["GET"]),
            Route("/admin/credits", Endpoint(self.list), methods=["GET"]),
            Route("/admin/credits", Endpoint(self.create), methods=["POST"]),
            Route(key, Endpoint(self.show), methods=["GET"]),
            Route(key, Endpoint(self.revoke), methods=["DELETE"]),
            Route(f"{key}/topup", Endpoint(self.topup), methods=["POST"]),
            Route(f"{key}/adjust", Endpoint(self.adjust), methods=["POST"]),
            Route(f"{key}/ledger", Endpoint(self.ledger), methods=["GET"]),
        ]

    async def own(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the caller's own key has.

        Raises:
            AuthenticationError: the caller is the daemon's owner and sent no key.
        """
        tenant = scope["state"].get("tenant")
        if tenant is None:
            raise AuthenticationError(
                "This shows what a key has, and the request has none.",
                remedy="Send it in the header 'Authorization: Bearer KEY'; GET /admin/credits lists all keys.",
            )
        view = await self._ledger.view(tenant)
        # OpenRouter's shape, in which amounts are numbers, beside the exact strings.
        data = {"total_credits": _number(view.given), "total_usage": _number(view.spent)}
        document = key_document(view)
        kept = ("id", "label", "plan", "currency", "available", "held", "spent", "given")
        await send_json(send, {"object": "credits", **{name: document[name] for name in kept}, "data": data})

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All keys, in the order in which they were made; and the sums of all accounts, which together are zero."""
        query = query_of(scope, "after", "limit")
        limit = whole_number(query, "limit", _PAGE, _LARGEST_PAGE)
        views = await self._ledger.views(after=whole_number(query, "after", 0, _LAST_ROW), limit=limit + 1)
        house = await self._ledger.house()
        more = len(views) > limit
        document = {
            "object": "list",
            "data": [key_document(view) for view in views[:limit]],
            "has_more": more,
            "next_after": views[limit - 1].id if more else None,
            "accounts": {kind: format_usd(amount) for kind, amount in house.items()},
        }
        await send_json(send, document)

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make a key. It is in this reply and nowhere else, ever.

        Raises:
            InvalidRequest: see ``Ledger.create``.
        """
        body = await read_checked(scope, receive, "admin-credits-create-request")
        made = await self._ledger.create(
            label=cast("str", body.get("label", "")),
            plan=cast("str | None", body.get("plan")),
            balance=parse_usd(cast("str", body.get("balance", "0"))),
            idempotency=cast("str | None", body.get("idempotency_key")),
        )
        document = {**key_document(made.view), "key": made.secret}
        await send_json(send, document, status=200 if made.secret is None else 201)

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One key. Raises NotFound."""
        await send_json(send, key_document(await self._ledger.view(_key(scope))))

    async def revoke(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a key from now on. Raises NotFound."""
        await send_json(send, key_document(await self._ledger.revoke(_key(scope))))

    async def topup(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give a key more credit, once for each idempotency key.

        Raises:
            NotFound, InvalidRequest: see ``Ledger.give``.
        """
        await self._give("topup", scope, receive, send)

    async def adjust(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Correct what a key has, up or down, never below zero, once for each idempotency key.

        Raises:
            NotFound, InvalidRequest: see ``Ledger.give``.
        """
        await self._give("adjust", scope, receive, send)

    async def ledger(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A key's entries, the newest first; ``holds=true`` shows reservations and releases too. Raises NotFound."""
        query = query_of(scope, "before", "limit", "holds")
        limit = whole_number(query, "limit", _PAGE, _LARGEST_PAGE)
        lines = await self._ledger.lines(
            _key(scope),
            before=whole_number(query, "before", _LAST_ROW, _LAST_ROW),
            limit=limit + 1,
            holds=_switch(query, "holds"),
        )
        more = len(lines) > limit
        document = {
            "object": "list",
            "data": [line_document(line) for line in lines[:limit]],
            "has_more": more,
            "next_before": lines[limit - 1].id if more else None,
        }
        await send_json(send, document)

    async def _give(self, kind: GivenKind, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_checked(scope, receive, f"admin-credits-{kind}-request")
        amount = parse_usd(cast("str", body["amount"]))
        if amount == 0:
            raise InvalidRequest("'amount' is 0, which changes nothing.", param="amount")
        given = await self._ledger.give(
            kind,
            _key(scope),
            amount,
            idempotency=cast("str", body["idempotency_key"]),
            note=cast("str", body.get("note", "")),
        )
        document = {"entry": given.entry, "replayed": given.replayed, "key": key_document(given.view)}
        await send_json(send, document)


def key_document(view: KeyView) -> dict[str, object]:
    """A key as JSON; amounts are decimal strings of US dollars."""
    return {
        "object": "credit_key",
        "id": view.name,
        "hint": view.hint,
        "label": view.label,
        "plan": view.plan,
        "source": view.source,
        "currency": "USD",
        "available": format_usd(view.available),
        "held": format_usd(view.held),
        "spent": format_usd(view.spent),
        "given": format_usd(view.given),
        "created_at": _time(view.created_us),
        "revoked_at": None if view.revoked_us is None else _time(view.revoked_us),
    }


def line_document(line: Line) -> dict[str, object]:
    """An entry as JSON. ``amount`` is by how much it changed what the key is worth; holding and releasing change nothing of that."""
    request = None
    if line.request is not None:
        request = {
            "id": line.request,
            "model": line.model,
            "ended": line.reason,
            "prompt_tokens": line.prompt_tokens,
            "cached_tokens": line.cached_tokens,
            "completion_tokens": line.completion_tokens,
        }
    return {
        "object": "credit_entry",
        "id": line.id,
        "kind": line.kind,
        "at": _time(line.at_us),
        "amount": format_usd(line.available + line.held),
        "available_change": format_usd(line.available),
        "held_change": format_usd(line.held),
        "credit_after": format_usd(line.credit_after),
        "note": line.note,
        "request": request,
    }


def _key(scope: Scope) -> str:
    return str(scope["path_params"]["key"])


def _time(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _number(pico: int) -> float:
    """Dollars for those who want a JSON number; nothing is ever computed with it."""
    return float(format_usd(pico))


def _switch(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"'{name}' is '{text[:60]}'; it must be true or false.", param=name)
    return text == "true"
