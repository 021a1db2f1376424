"""The calls of the credit ledger: what is sent, what is made of the replies, and what is never sent twice by accident."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anyio
import pytest

import clientlib
from support.clientlib_server import Peer, Received, ScriptedServer, reply

KEYS = [{"object": "credit_key", "id": f"key_{number}", "available": "1.00"} for number in range(5)]
ACCOUNTS = {"available": "5.00", "funds": "-5.00"}


def answered(request: Received) -> bytes:
    path, _, query = request.target.partition("?")
    if (request.method, path) == ("GET", "/admin/credits"):
        start = next((n + 1 for n in range(5) if f"after={n}" in query), 0)
        more = start + 2 < 5
        return reply(
            {
                "data": KEYS[start : start + 2],
                "has_more": more,
                "next_after": start + 1 if more else None,
                "accounts": ACCOUNTS,
            }
        )
    if (request.method, path) == ("POST", "/admin/credits"):
        return reply(
            {"id": "key_new", "key": "sk-stretto-x", **json.loads(request.body)}, status="201 Created"
        )
    if path.endswith(("/topup", "/adjust")):
        return reply({"entry": 7, "replayed": False, "sent": json.loads(request.body)})
    if path.endswith("/ledger"):
        return reply({"data": [{"id": 3}], "next_before": 3})
    if "key_0" in path:
        return reply({"id": "key_0", "revoked_at": "now" if request.method == "DELETE" else None})
    return reply({"error": {"message": "no", "code": "key_not_found"}}, status="404 Not Found")


def script(peer: Peer) -> None:
    while request := peer.request():
        peer.send(answered(request))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as running:
        yield running


EXPECTED = [
    ("GET", "/admin/credits?limit=1000"),
    ("GET", "/admin/credits?limit=1000&after=1"),
    ("GET", "/admin/credits?limit=1000&after=3"),
    ("GET", "/admin/credits?limit=1000"),
    ("GET", "/admin/credits/key_0"),
    ("POST", "/admin/credits"),
    ("POST", "/admin/credits/key_0/topup"),
    ("POST", "/admin/credits/key_0/adjust"),
    ("DELETE", "/admin/credits/key_0"),
    ("GET", "/admin/credits/key_0/ledger?limit=100"),
    ("GET", "/admin/credits/key_0/ledger?limit=5&before=9&holds=true"),
    ("GET", "/admin/credits/a%2Fb"),
]


def test_sync(server: ScriptedServer) -> None:
    with clientlib.Client(server.path) as client:
        ledger = client.admin.credits
        assert ledger.list() == KEYS
        assert ledger.accounts() == ACCOUNTS
        assert ledger.show("key_0")["id"] == "key_0"
        made = ledger.create(label="é", plan="p", balance=Decimal("2.50"), idempotency_key="i")
        assert made == {
            "id": "key_new",
            "key": "sk-stretto-x",
            "label": "é",
            "plan": "p",
            "balance": "2.50",
            "idempotency_key": "i",
        }
        sent = ledger.topup("key_0", "5", idempotency_key="p1", note="n")["sent"]
        assert sent == {"amount": "5", "idempotency_key": "p1", "note": "n"}
        assert ledger.adjust("key_0", -1)["sent"]["amount"] == "-1"
        assert ledger.revoke("key_0")["revoked_at"] == "now"
        assert ledger.ledger("key_0")["next_before"] == 3
        ledger.ledger("key_0", limit=5, before=9, holds=True)
        with pytest.raises(clientlib.NotFound) as caught:
            ledger.show("a/b")
        assert caught.value.code == "key_not_found"
    assert [(request.method, request.target) for request in server.requests] == EXPECTED


def test_async(server: ScriptedServer) -> None:
    async def main() -> None:
        async with clientlib.AsyncClient(server.path) as client:
            ledger = client.admin.credits
            assert await ledger.list() == KEYS
            assert await ledger.accounts() == ACCOUNTS
            assert (await ledger.show("key_0"))["id"] == "key_0"
            assert (await ledger.create())["balance"] == "0"
            assert (await ledger.topup("key_0", 5))["sent"]["amount"] == "5"
            assert (await ledger.adjust("key_0", Decimal("-0.10")))["sent"]["amount"] == "-0.10"
            assert (await ledger.revoke("key_0"))["revoked_at"] == "now"
            assert (await ledger.ledger("key_0"))["next_before"] == 3
            await ledger.ledger("key_0", limit=5, before=9, holds=True)
            with pytest.raises(clientlib.NotFound):
                await ledger.show("a/b")

    anyio.run(main, backend="trio")
    assert [(request.method, request.target) for request in server.requests] == EXPECTED


def test_every_gift_has_an_idempotency_key_of_its_own(server: ScriptedServer) -> None:
    with clientlib.Client(server.path) as client:
        keys = {client.admin.credits.topup("key_0", 1)["sent"]["idempotency_key"] for _ in range(10)}
    assert len(keys) == 10
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize("amount", [1.5, True, float("nan")])
def test_a_float_is_no_amount(server: ScriptedServer, amount: Any) -> None:
    with clientlib.Client(server.path) as client, pytest.raises(TypeError, match="str, an int or a Decimal"):
        client.admin.credits.topup("key_0", amount)
    assert server.requests == []


@pytest.mark.parametrize(
    ("amount", "text"),
    [(Decimal("1E+2"), "100"), (Decimal("0.0000001"), "0.0000001"), ("007", "007"), (12, "12")],
)
def test_amounts_go_out_as_plain_decimals(server: ScriptedServer, amount: Any, text: str) -> None:
    with clientlib.Client(server.path) as client:
        assert client.admin.credits.topup("key_0", amount)["sent"]["amount"] == text


def test_a_key_must_be_named(server: ScriptedServer) -> None:
    with clientlib.Client(server.path) as client, pytest.raises(ValueError, match="key is empty"):
        client.admin.credits.show("")


def test_a_topup_may_be_sent_again_and_a_new_key_without_a_name_may_not() -> None:
    """A connection that was kept and has died meanwhile: the request goes out once more only where that is safe."""

    def dies_after_one(peer: Peer) -> None:
        if request := peer.request():
            peer.send(answered(request))
            peer.request()  # read, and not answered

    for call, tries in (("topup", 2), ("create", 1)):
        with ScriptedServer(dies_after_one) as server, clientlib.Client(server.path) as client:
            client.admin.credits.show("key_0")
            if call == "topup":
                assert client.admin.credits.topup("key_0", 1, idempotency_key="x")["entry"] == 7
            else:
                with pytest.raises(clientlib.ConnectionLost):
                    client.admin.credits.create()
        assert [request.method for request in server.requests] == ["GET"] + ["POST"] * tries


def test_an_empty_purse_is_an_error_of_its_own() -> None:
    def poor(peer: Peer) -> None:
        while peer.request():
            body = {
                "error": {
                    "message": "It may cost $2.",
                    "code": "insufficient_credits",
                    "remedy": "Top up the key.",
                }
            }
            peer.send(reply(body, status="402 Payment Required"))

    with ScriptedServer(poor) as server, clientlib.Client(server.path, model="m") as client:
        with pytest.raises(clientlib.InsufficientCredits) as caught:
            client.generate("x")
    assert (caught.value.status, str(caught.value)) == (402, "It may cost $2. Top up the key.")
    assert isinstance(caught.value, clientlib.RequestError)


def test_usage_has_the_cost() -> None:
    usage = clientlib.replies.parse_usage({"prompt_tokens": 1, "completion_tokens": 2, "cost": 3.6e-05})
    assert usage is not None
    assert usage.cost == 3.6e-05
    free = clientlib.replies.parse_usage({"prompt_tokens": 1, "completion_tokens": 2})
    assert free is not None
    assert free.cost is None
    for wrong in ("1", True):
        with pytest.raises(clientlib.ProtocolError):
            clientlib.replies.parse_usage({"prompt_tokens": 1, "completion_tokens": 2, "cost": wrong})
