"""The ledger's routes, and who gets to which: over TCP by key and admin token, over the Unix socket as the owner."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api import public_app, refusal_body
from stretto.backends.echo import EchoTokenizer
from stretto.control import control_app
from stretto.conversation.messages import Request
from stretto.errors import InsufficientCredits
from stretto.ledger import Ledger
from stretto.ledger.reservations import Hold
from stretto.pipeline import Tokens
from support.ledger_books import ADMIN_TOKEN, ALICE, BOB, ask, open_books, usd
from support.serving_pipeline import MODEL, FakePipeline
from support.serving_server import Reply, RunningServer, post, running

ADMIN = f"Authorization: Bearer {ADMIN_TOKEN}"
AS_ALICE = f"Authorization: Bearer {ALICE}"
AS_BOB = f"x-api-key: {BOB}"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}]}
MESSAGE = {**CHAT, "max_tokens": 10}


class Asked(FakePipeline):
    """Keeps who asked."""

    def answer(self, request: Request) -> Any:
        self.tenant = request.caller.tenant
        return super().answer(request)


class Late:
    """An application that is made when its server runs already: the server counts open files, the store's among them."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving(
    directory: Path, pipeline: FakePipeline | None = None, *, socket: bool = False, **changes: Any
) -> AsyncIterator[tuple[RunningServer, Ledger]]:
    made, late = pipeline or FakePipeline(), Late()
    where = {"unix_path": directory / "s.sock"} if socket else {}
    async with (
        running(late, refusal_body=refusal_body, **where) as server,
        open_books(directory, **changes) as (ledger, _),
    ):
        if socket:
            late.app = control_app(made, on_stop=lambda grace: None, on_drain=lambda: None, ledger=ledger)
        else:
            late.app = public_app(made, ledger=ledger)
        yield server, ledger


async def call(
    server: RunningServer, method: str, path: str, *headers: str, body: Any = None
) -> tuple[int, Any, Reply]:
    if body is None:
        lines = "".join(f"{line}\r\n" for line in ("Host: localhost", "Connection: close", *headers))
        wire = f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()
    else:
        data = json.dumps(body).encode()
        wire = post(data, "Content-Type: application/json", "Connection: close", *headers, target=path)
    (reply,) = await server.exchange(wire)
    return reply.status, json.loads(reply.body), reply


def name_of(ledger: Ledger, secret: str = ALICE) -> str:
    return ledger.authenticate(secret.encode()).name


async def test_v1_needs_a_key_of_the_ledger_and_knows_whose_it_is(tmp_path: Path) -> None:
    pipeline = Asked()
    async with serving(tmp_path, pipeline) as (server, ledger):
        for header, expected in ((AS_ALICE, name_of(ledger)), (AS_BOB, name_of(ledger, BOB))):
            status, _, _ = await call(server, "POST", "/v1/chat/completions", header, body=CHAT)
            assert (status, pipeline.tenant) == (200, expected)
        for headers in (
            (),
            (ADMIN,),
            (f"Authorization: Basic {ALICE}",),
            (AS_ALICE + "x",),
            (f"X-Stretto-Tenant: {name_of(ledger)}",),
        ):
            status, document, reply = await call(server, "POST", "/v1/chat/completions", *headers, body=CHAT)
            assert (status, document["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
            assert ALICE not in str(document)
        assert pipeline.begun == 2
        assert (await server.get("/health")).status == 200


async def test_a_tenant_cannot_be_chosen_by_a_header(tmp_path: Path) -> None:
    pipeline = Asked()
    async with serving(tmp_path, pipeline) as (server, ledger):
        other = name_of(ledger, BOB)
        for header in (
            f"X-Stretto-Tenant: {other}",
            f"X-Fuuga-Tenant: {other}",
            f"Tenant: {other}",
            f"OpenAI-Organization: {other}",
        ):
            await call(server, "POST", "/v1/chat/completions", AS_ALICE, header, body={**CHAT, "user": other})
            assert pipeline.tenant == name_of(ledger)
        for path in ("/v1/credits", f"/v1/credits?key={other}", f"/v1/credits?tenant={other}"):
            _, document, _ = await call(server, "GET", path, AS_ALICE)
            assert document.get("id", name_of(ledger)) == name_of(ledger)


async def test_what_is_only_counted_or_tokenised_is_the_keys_own_too(tmp_path: Path) -> None:
    """A prompt has the model's own earlier turns as they were said, reasoning and all, if its tenant had them."""
    seen: list[str] = []

    async def prompt(request: Request) -> list[int]:
        seen.append(request.caller.tenant)
        return [1]

    class Counting(FakePipeline):
        async def count_tokens(self, request: Request) -> int:
            return len(await prompt(request))

    pipeline = Counting(tokens=Tokens(EchoTokenizer(), prompt))
    async with serving(tmp_path, pipeline) as (server, ledger):
        for path, body in (
            ("/v1/messages/count_tokens", CHAT),
            ("/v1/responses/input_tokens", {"model": "tiny", "input": "one"}),
            ("/tokenize", {"messages": CHAT["messages"]}),
        ):
            status, _, _ = await call(server, "POST", path, AS_BOB, body=body)
            assert (status, seen.pop()) == (200, name_of(ledger, BOB))


async def test_own_credits(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, ledger):
        hold = await ledger.reserve(ledger.authenticate(ALICE.encode()), ask())
        status, document, _ = await call(server, "GET", "/v1/credits", AS_ALICE)
        assert status == 200
        assert document == {
            "object": "credits",
            "id": name_of(ledger),
            "label": "Alice",
            "plan": None,
            "currency": "USD",
            "available": "0.9998",
            "held": "0.0002",
            "spent": "0.00",
            "given": "1.00",
            "data": {"total_credits": 1.0, "total_usage": 0.0},
        }
        await ledger.release(hold)
        _, document, _ = await call(server, "GET", "/v1/credits", AS_BOB)
        assert (document["label"], document["available"]) == ("Bob", "1.00")


ADMIN_CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/admin/credits", None),
    ("POST", "/admin/credits", {}),
    ("GET", "/admin/credits/{key}", None),
    ("DELETE", "/admin/credits/{key}", None),
    ("POST", "/admin/credits/{key}/topup", {"amount": "1", "idempotency_key": "a"}),
    ("POST", "/admin/credits/{key}/adjust", {"amount": "1", "idempotency_key": "b"}),
    ("GET", "/admin/credits/{key}/ledger", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_CALLS)
async def test_administration_needs_the_token_over_tcp(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    async with serving(tmp_path) as (server, ledger):
        target = path.format(key=name_of(ledger))
        for headers in (
            (),
            (AS_ALICE,),
            (AS_BOB,),
            (ADMIN[:-1],),
            (ADMIN + "x",),
            ("Authorization: Bearer",),
        ):
            status, document, _ = await call(server, method, target, *headers, body=body)
            assert (status, document["error"]["code"]) == (401, "invalid_admin_token")
        before = await ledger.view(name_of(ledger))
        assert (before.revoked_us, before.available, len(await ledger.views(limit=9))) == (None, usd(1), 2)
        for headers in ((ADMIN,), (f"x-api-key: {ADMIN_TOKEN}",)):
            status, _, _ = await call(server, method, target, *headers, body=body)
            assert status in (200, 201)
            if method != "GET":
                break


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_CALLS)
async def test_the_owner_of_the_socket_needs_none(tmp_path: Path, method: str, path: str, body: Any) -> None:
    async with serving(tmp_path, socket=True) as (server, ledger):
        status, _, _ = await call(server, method, path.format(key=name_of(ledger)), body=body)
        assert status in (200, 201)


@pytest.mark.parametrize("headers", [(), (ADMIN,), (AS_ALICE,)])
async def test_nothing_of_it_is_there_without_a_ledger(headers: tuple[str, ...]) -> None:
    more: list[tuple[str, str, Any]] = [("GET", "/v1/credits", None), ("GET", "/v1/openrouter/models", None)]
    async with running(public_app(FakePipeline())) as server:
        for method, path, body in ADMIN_CALLS + more:
            status, document, _ = await call(server, method, path.format(key="key_0"), *headers, body=body)
            assert (status, document["error"]["code"]) == (404, "not_found")
        _, document, _ = await call(server, "GET", "/v1/models")
        assert "pricing" not in document["data"][0]


async def test_over_the_socket_a_key_pays_and_no_key_is_free(tmp_path: Path) -> None:
    pipeline = Asked()
    async with serving(tmp_path, pipeline, socket=True) as (server, ledger):
        await call(server, "POST", "/v1/chat/completions", body=CHAT)
        assert pipeline.tenant == ""
        await call(server, "POST", "/v1/chat/completions", AS_ALICE, body=CHAT)
        assert pipeline.tenant == name_of(ledger)
        status, _, _ = await call(server, "POST", "/v1/chat/completions", AS_ALICE + "x", body=CHAT)
        assert status == 401
        status, document, _ = await call(server, "GET", "/v1/credits")
        assert (status, document["error"]["code"]) == (401, "invalid_api_key")
        assert (await call(server, "GET", "/v1/credits", AS_ALICE))[1]["label"] == "Alice"
        assert (await call(server, "GET", "/admin/status"))[0] == 200


async def test_a_key_is_made_used_topped_up_adjusted_and_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path, keys={}) as (server, _):
        wish = {"label": "Carol", "balance": "2.50", "idempotency_key": "n1"}
        status, made, _ = await call(server, "POST", "/admin/credits", ADMIN, body=wish)
        assert status == 201
        assert made["key"].startswith("sk-stretto-")
        assert (made["object"], made["label"], made["available"], made["source"], made["revoked_at"]) == (
            "credit_key",
            "Carol",
            "2.50",
            "admin",
            None,
        )
        status, again, _ = await call(server, "POST", "/admin/credits", ADMIN, body=wish)
        assert (status, again) == (200, {**made, "key": None})
        as_carol, path = f"Authorization: Bearer {made['key']}", f"/admin/credits/{made['id']}"
        assert (await call(server, "GET", "/v1/models", as_carol))[0] == 200

        gift = {"amount": "7.5", "idempotency_key": "p1", "note": "invoice 17"}
        for replayed in (False, True):
            status, given, _ = await call(server, "POST", f"{path}/topup", ADMIN, body=gift)
            assert (status, given["replayed"], given["key"]["available"]) == (200, replayed, "10.00")
        status, document, _ = await call(server, "POST", f"{path}/topup", ADMIN, body={**gift, "amount": "8"})
        assert (status, document["error"]["code"]) == (409, "idempotency_conflict")
        status, given, _ = await call(
            server, "POST", f"{path}/adjust", ADMIN, body={"amount": "-0.25", "idempotency_key": "p2"}
        )
        assert given["key"]["available"] == "9.75"

        _, page, _ = await call(server, "GET", f"{path}/ledger?limit=2", ADMIN)
        assert [
            (entry["kind"], entry["amount"], entry["credit_after"], entry["note"]) for entry in page["data"]
        ] == [
            ("adjust", "-0.25", "9.75", ""),
            ("topup", "7.50", "10.00", "invoice 17"),
        ]
        assert page["has_more"] is True
        _, page, _ = await call(server, "GET", f"{path}/ledger?before={page['next_before']}", ADMIN)
        assert [entry["kind"] for entry in page["data"]] == ["topup"]
        assert (page["has_more"], page["next_before"]) == (False, None)

        status, revoked, _ = await call(server, "DELETE", path, ADMIN)
        assert (status, revoked["available"]) == (200, "9.75")
        assert revoked["revoked_at"].endswith("Z")
        status, document, _ = await call(server, "GET", "/v1/models", as_carol)
        assert (status, document["error"]["message"]) == (401, "This API key has been revoked.")
        _, listed, _ = await call(server, "GET", "/admin/credits", ADMIN)
        assert listed["data"] == [revoked]
        assert listed["accounts"] == {
            "adjustments": "0.25",
            "available": "9.75",
            "funds": "-10.00",
            "held": "0.00",
            "spent": "0.00",
        }


async def test_keys_are_listed_in_pages(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        _, first, _ = await call(server, "GET", "/admin/credits?limit=1", ADMIN)
        assert ([key["label"] for key in first["data"]], first["has_more"]) == (["Alice"], True)
        _, second, _ = await call(server, "GET", f"/admin/credits?limit=1&after={first['next_after']}", ADMIN)
        assert ([key["label"] for key in second["data"]], second["has_more"]) == (["Bob"], False)


async def test_a_request_is_in_the_ledger_with_its_holds_where_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, ledger):
        hold: Hold = await ledger.reserve(ledger.authenticate(ALICE.encode()), ask(request="chatcmpl-7"))
        path = f"/admin/credits/{name_of(ledger)}/ledger"
        _, page, _ = await call(server, "GET", f"{path}?holds=true", ADMIN)
        entry = page["data"][0]
        assert (entry["kind"], entry["amount"], entry["available_change"], entry["held_change"]) == (
            "reserve",
            "0.00",
            "-0.0002",
            "0.0002",
        )
        assert entry["request"] == {
            "id": "chatcmpl-7",
            "model": "echo",
            "ended": None,
            "prompt_tokens": None,
            "cached_tokens": None,
            "completion_tokens": None,
        }
        await ledger.release(hold)
        _, page, _ = await call(server, "GET", path, ADMIN)
        assert [entry["kind"] for entry in page["data"]] == ["topup"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("GET", "", None, 404, "key_not_found", "key"),
        ("DELETE", "", None, 404, "key_not_found", "key"),
        ("GET", "/ledger", None, 404, "key_not_found", "key"),
        ("POST", "/topup", {"amount": "1", "idempotency_key": "a"}, 404, "key_not_found", "key"),
        ("POST", "/topup", {}, 400, "invalid_value", "amount"),
        ("POST", "/topup", {"amount": "1"}, 400, "invalid_value", "idempotency_key"),
        ("POST", "/topup", {"amount": 1, "idempotency_key": "a"}, 400, "invalid_value", "amount"),
        ("POST", "/topup", {"amount": "-1", "idempotency_key": "a"}, 400, "invalid_value", "amount"),
        ("POST", "/topup", {"amount": "0.000", "idempotency_key": "a"}, 400, "invalid_value", "amount"),
        ("POST", "/topup", {"amount": "1e3", "idempotency_key": "a"}, 400, "invalid_value", "amount"),
        ("POST", "/topup", {"amount": "1", "idempotency_key": ""}, 400, "invalid_value", "idempotency_key"),
        ("POST", "/topup", {"amount": "1", "idempotency_key": "a", "x": 1}, 400, "unknown_parameter", None),
        ("POST", "/adjust", {"amount": "0", "idempotency_key": "a"}, 400, "invalid_value", "amount"),
        (
            "POST",
            "/adjust",
            {"amount": "1", "idempotency_key": "a", "note": "a\nb"},
            400,
            "invalid_value",
            "note",
        ),
        ("GET", "/ledger?limit=0", None, 400, "invalid_value", "limit"),
        ("GET", "/ledger?limit=1001", None, 400, "invalid_value", "limit"),
        ("GET", "/ledger?before=x", None, 400, "invalid_value", "before"),
        ("GET", "/ledger?holds=1", None, 400, "invalid_value", "holds"),
        ("GET", "/ledger?page=2", None, 400, "unknown_parameter", "page"),
    ],
)
async def test_what_is_wrong_with_an_admin_call_is_named(
    tmp_path: Path, method: str, path: str, body: Any, status: int, code: str, param: str | None
) -> None:
    async with serving(tmp_path) as (server, _):
        found, document, _ = await call(server, method, f"/admin/credits/key_none{path}", ADMIN, body=body)
    assert (found, document["error"]["code"], document["error"]["param"]) == (status, code, param)


@pytest.mark.parametrize(
    "body",
    [
        {"label": "x" * 101},
        {"label": "\x1b[2J"},
        {"balance": "-1"},
        {"plan": "a b"},
        {"idempotency_key": "ä"},
    ],
)
async def test_a_new_key_is_checked_field_by_field(tmp_path: Path, body: dict[str, str]) -> None:
    async with serving(tmp_path) as (server, ledger):
        status, document, _ = await call(server, "POST", "/admin/credits", ADMIN, body=body)
        assert (status, document["error"]["param"]) == (400, next(iter(body)))
        assert len(await ledger.views(limit=9)) == 2


async def test_402_in_the_words_of_each_dialect(tmp_path: Path) -> None:
    poor = FakePipeline(refusal=InsufficientCredits("Too dear.", remedy="Top up."))
    async with serving(tmp_path, poor) as (server, _):
        status, document, reply = await call(server, "POST", "/v1/chat/completions", AS_ALICE, body=CHAT)
        assert (status, reply.headers["x-should-retry"]) == (402, "false")
        assert document == {
            "error": {
                "message": "Too dear.",
                "type": "insufficient_quota",
                "param": None,
                "code": "insufficient_credits",
                "remedy": "Top up.",
            }
        }
        status, document, _ = await call(
            server, "POST", "/v1/messages", AS_BOB, "anthropic-version: 2023-06-01", body=MESSAGE
        )
        assert status == 402
        assert document["type"] == "error"
        assert (document["error"]["type"], document["error"]["message"], document["error"]["code"]) == (
            "billing_error",
            "Too dear.",
            "insufficient_credits",
        )


async def test_the_listings_have_the_prices(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        _, flat, _ = await call(server, "GET", "/v1/models", AS_ALICE)
        assert flat["data"][0]["pricing"]["prompt"] == "0.000001"
        _, one, _ = await call(server, "GET", "/v1/models/tiny", AS_ALICE)
        assert one == flat["data"][0]
        status, current, _ = await call(server, "GET", "/v1/openrouter/models", AS_ALICE)
        assert (status, [entry["id"] for entry in current["data"]]) == (200, [MODEL.id])
        assert (await call(server, "GET", "/v1/openrouter/models"))[0] == 401
