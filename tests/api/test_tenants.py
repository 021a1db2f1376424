"""Two keys, every route, header and id: neither sees or changes anything of the other. A route that nobody decided about fails here."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from stretto.backends.echo import EchoScript
from stretto.control import control_app
from support.ledger_books import ADMIN_TOKEN, ALICE, BOB
from support.serving_pipeline import FakePipeline
from support.serving_server import Reply, post
from support.tenant_house import House, open_house, routes_of

MARK = "swordfish"
"""In whatever is Alice's alone."""
QUESTION = "How do I close my account?"
TURN = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
SAME = "How can I close my account?"
LONG = "Consider the following terms of the contract with care. " * 4
IDEMPOTENT = "Idempotency-Key: alices-own-key"
AS_ALICE = f"Authorization: Bearer {ALICE}"
AS_BOB = f"Authorization: Bearer {BOB}"
CAROL = "sk-test-carol-000000000000000000003"
AS_CAROL = f"Authorization: Bearer {CAROL}"
AS_ADMIN = f"Authorization: Bearer {ADMIN_TOKEN}"

CHAT = {"model": "echo", "messages": [{"role": "user", "content": QUESTION}]}
MESSAGES = {**CHAT, "max_tokens": 200}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "echo", "prompt": TURN, "max_tokens": 40},
    "/v1/responses": {"model": "echo", "input": QUESTION},
    "/v1/messages": MESSAGES,
}

OPEN = {("GET", "/health"), ("GET", "/health/live"), ("GET", "/health/ready")}
"""What anybody may ask: nothing in it is anybody's."""
OWN: dict[tuple[str, str], Any] = {
    **{("POST", path): body for path, body in ANSWERS.items()},
    ("POST", "/v1/responses/input_tokens"): {"model": "echo", "input": QUESTION},
    ("POST", "/v1/messages/count_tokens"): CHAT,
    ("POST", "/v1/embeddings"): {"model": "bag", "input": QUESTION},
    ("POST", "/v1/rerank"): {"model": "words", "query": QUESTION, "documents": [QUESTION]},
    ("POST", "/tokenize"): {"messages": CHAT["messages"]},
    ("POST", "/detokenize"): {"tokens": [104, 105]},
    ("GET", "/v1/models"): None,
    ("GET", "/v1/models/{model_id:path}"): None,
    ("GET", "/v1/openrouter/models"): None,
    ("GET", "/v1/credits"): None,
    ("GET", "/v1/memory"): None,
    ("POST", "/v1/memory"): {"text": "Bob's note on how to close an account"},
    ("DELETE", "/v1/memory"): None,
    ("DELETE", "/v1/memory/{entry_id}"): None,
    ("DELETE", "/v1/cache"): None,
}
"""What needs a key, and is about that key's own things; with a body for it."""
ADMIN: dict[tuple[str, str], Any] = {
    ("GET", "/admin/credits"): None,
    ("POST", "/admin/credits"): {},
    ("GET", "/admin/credits/{key}"): None,
    ("DELETE", "/admin/credits/{key}"): None,
    ("POST", "/admin/credits/{key}/topup"): {"amount": "1", "idempotency_key": "a"},
    ("POST", "/admin/credits/{key}/adjust"): {"amount": "-1", "idempotency_key": "b"},
    ("GET", "/admin/credits/{key}/ledger"): None,
}
"""What needs the admin token."""


@dataclass
class Alices:
    """What Alice has, and by which names it goes."""

    name: str
    notes: list[str]
    requests: list[str]

    def secrets(self) -> list[str]:
        return [MARK, "Alice", ALICE, self.name, *self.notes, *self.requests]


@asynccontextmanager
async def inhabited(directory: Path, **options: Any) -> AsyncIterator[tuple[House, Alices]]:
    """A house in which Alice has notes, turns, answers that say ``MARK``, and a ledger; and all of it works for her."""
    async with open_house(directory, EchoScript(reply="So."), **options) as house:
        name = house.key(ALICE).name
        requests = []
        notes = [
            (await house.memory.add_note(name, session, f"the account's password is {MARK}")).id
            for session in ("default", "work")
        ]
        for session in ("default", "work"):
            await house.memory.record(name, session, "how to close my account", f"with the {MARK}")
        for path, body in ANSWERS.items():
            for extra in ((IDEMPOTENT,), ("X-Stretto-Session: work", "X-Stretto-Memory: read")):
                reply, _ = await house.call("POST", path, body, (AS_ALICE, *extra))
                assert reply.status == 200
                requests.append(reply.headers["x-request-id"])
        await house.store.write(
            lambda connection: connection.execute(f"UPDATE cache_answer SET answer = '{MARK}'").fetchone()
        )
        await require_that_it_is_alices(house)
        yield house, Alices(name, notes, requests)


async def require_that_it_is_alices(house: House) -> None:
    """Fail unless she gets her own, so that a test which finds nothing of it with Bob has looked in the right place."""
    for question, match in ((QUESTION, "exact"), (SAME, "semantic")):
        body = {**CHAT, "messages": [{"role": "user", "content": question}]}
        reply, _ = await house.call(
            "POST", "/v1/chat/completions", body, (AS_ALICE, "X-Stretto-Memory: read")
        )
        assert (reply.headers["x-stretto-cache-match"], MARK in reply.body.decode()) == (match, True)
    house.engine.prompts.clear()
    headers = (AS_ALICE, "X-Stretto-Cache: off", "X-Stretto-Memory: read")
    reply, _ = await house.call("POST", "/v1/chat/completions", CHAT, headers)
    assert int(reply.headers["x-stretto-memory-recalled"]) >= 2
    assert MARK in house.engine.prompts.pop()
    for path, body in ANSWERS.items():
        reply, _ = await house.call("POST", path, body, (AS_ALICE, IDEMPOTENT))
        assert reply.headers["idempotent-replayed"] == "true"
    reply, _ = await house.call("GET", "/v1/memory", None, (AS_ALICE,))
    assert MARK in reply.body.decode()


async def all_of_alice(house: House, name: str) -> Any:
    """Everything that is hers, as it is now."""
    return (
        [await house.memory.page(name, session) for session in ("default", "work")],
        [entry for entry, _ in await house.cache.page(tenant=name)],
        await house.ledger.view(name),
        await house.ledger.lines(name, before=2**62, limit=1000, holds=True),
    )


def disguises(alice: Alices) -> list[tuple[str, ...]]:
    """Ways for Bob to look like Alice, as far as headers go."""
    return [
        (AS_BOB,),
        (f"x-api-key: {BOB}", f"Authorization: Bearer {alice.name}"),
        (f"Authorization: Basic {alice.name}", f"x-api-key: {BOB}"),
        (AS_BOB, f"X-Stretto-Tenant: {alice.name}", f"X-Fuuga-Tenant: {alice.name}"),
        (AS_BOB, "X-Stretto-Session: work"),
        (AS_BOB, "X-Fuuga-Session: work", "X-Fuuga-Memory: read", "X-Fuuga-Cache: on"),
        (AS_BOB, f"X-Stretto-Session: {alice.name}"),
        (AS_BOB, f"X-Stretto-Session: {alice.name}/default", "X-Stretto-Memory: on"),
        (AS_BOB, "X-Stretto-Memory: off", "X-Stretto-Cache: on"),
        (AS_BOB, "X-Stretto-Cache: refresh"),
        (AS_BOB, IDEMPOTENT),
        (AS_BOB, "X-Stainless-Retry-Count: 1"),
        (AS_BOB, f"X-Request-Id: {alice.requests[0]}", f"Request-Id: {alice.requests[0]}"),
        (AS_BOB, f"OpenAI-Organization: {alice.name}", f"OpenAI-Project: {alice.name}"),
        (
            AS_BOB,
            "X-Forwarded-For: 127.0.0.1",
            f"X-Forwarded-User: {alice.name}",
            f"Cookie: tenant={alice.name}",
        ),
    ]


def targets(path: str, alice: Alices) -> list[str]:
    """A route's path, with ids of Alice's where it has room for one."""
    if "{entry_id}" in path:
        return [path.replace("{entry_id}", note) for note in alice.notes]
    if "{model_id:path}" in path:
        return [path.replace("{model_id:path}", name) for name in ("echo", alice.name)]
    return [path.replace("{key}", alice.name)]


def require_nothing_of(alice: Alices, reply: Reply, wire: bytes) -> None:
    """Fail if a reply has anything of Alice's that its asker did not say."""
    seen = f"{reply.headers}".encode() + reply.body
    found = [secret for secret in alice.secrets() if secret.encode() in seen and secret.encode() not in wire]
    assert not found, (wire, seen)


async def test_every_route_has_a_decision(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        assert routes_of(house.app) == OPEN | set(OWN) | set(ADMIN)


@pytest.mark.parametrize("socket", [False, True])
async def test_bob_finds_nothing_of_alices_and_changes_nothing(tmp_path: Path, socket: bool) -> None:
    async with inhabited(tmp_path, socket=socket) as (house, alice):
        before = await all_of_alice(house, alice.name)
        house.engine.prompts.clear()
        tried = disguises(alice)[:6] if socket else disguises(alice)
        for (method, path), headers in itertools.product(OWN, tried):
            for target in targets(path, alice):
                reply, wire = await house.call(method, target, OWN[method, path], headers)
                require_nothing_of(alice, reply, wire)
                assert reply.status < 500
                if "{entry_id}" in path:
                    assert reply.status == 404
        assert house.engine.prompts
        assert not [prompt for prompt in house.engine.prompts if MARK in prompt]
        assert await all_of_alice(house, alice.name) == before
        await require_that_it_is_alices(house)


async def test_bob_asks_what_alice_asked_and_is_answered_anew(tmp_path: Path) -> None:
    async with inhabited(tmp_path) as (house, _):
        for path, question in itertools.product(
            ("/v1/chat/completions", "/v1/messages", "/v1/responses"), (QUESTION, SAME)
        ):
            await house.cache.forget(house.key(BOB).name)  # what he was answered in the turn before
            body = json.loads(json.dumps(ANSWERS[path]).replace(QUESTION, question))
            reply, _ = await house.call("POST", path, body, (AS_BOB, "X-Stretto-Memory: read"))
            assert reply.headers["x-stretto-cache-result"] == "miss"
            assert reply.headers["x-stretto-memory-recalled"] == "0"
            assert "So." in reply.body.decode()


@pytest.mark.parametrize("path", ANSWERS)
async def test_nobody_joins_a_running_request_of_another(tmp_path: Path, path: str) -> None:
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {**ANSWERS[path], "stream": True, most: 3000}
    keys = {key: {"balance": "1"} for key in (ALICE, BOB, CAROL)}
    async with open_house(tmp_path, EchoScript(repeat=0), keys=keys) as house:
        async with await house.server.connect() as client, await house.server.connect() as second:
            await client.send(wire_of(path, body, AS_ALICE, IDEMPOTENT))
            hers = request_id(await client.read_until(b"data: "))
            await second.send(wire_of(path, body, AS_ALICE, IDEMPOTENT))
            assert request_id(await second.read_until(b"data: ")) == hers
            async with await house.server.connect() as other:
                await other.send(wire_of(path, body, AS_BOB, IDEMPOTENT))
                got = await other.read_until(b"data: ")
                assert got.startswith(b"HTTP/1.1 200")
                assert b"idempotent-replayed" not in got.lower()
                assert request_id(got) != hers
            # Another body under her key is refused to her alone: nobody else learns that the key is taken.
            short = {**body, "stream": False, most: 4}
            for who, status in ((AS_ALICE, 422), (AS_CAROL, 200)):
                for again in ("X-Stainless-Retry-Count: 0", "X-Stainless-Retry-Count: 1"):
                    reply, _ = await house.call("POST", path, short, (who, IDEMPOTENT, again))
                    assert reply.status == status
                    assert hers.decode() not in str(reply.headers)
            with trio.fail_after(90):
                await client.read_until(b"data: ")  # hers goes on


def wire_of(path: str, body: Any, *headers: str) -> bytes:
    return post(json.dumps(body).encode(), "Content-Type: application/json", *headers, target=path)


def request_id(head: bytes) -> bytes:
    return next(
        line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id: ")
    )


async def test_what_is_known_of_a_prompt_tells_nobody_that_another_sent_it(tmp_path: Path) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    headers = ("X-Stretto-Memory: off", "X-Stretto-Cache: off")
    counts: dict[tuple[str, str], Any] = {}
    async with open_house(tmp_path) as house:
        for who, times in ((AS_ALICE, "first"), (AS_ALICE, "again"), (AS_BOB, "first"), (AS_BOB, "again")):
            reply, _ = await house.call("POST", "/v1/chat/completions", body, (who, *headers))
            usage = json.loads(reply.body)["usage"]
            counts[who, times] = usage["prompt_tokens_details"]["cached_tokens"]
    assert counts[AS_ALICE, "first"] == counts[AS_BOB, "first"] == 0
    assert counts[AS_ALICE, "again"] == counts[AS_BOB, "again"] > 100


SPELLINGS = [
    "/v1/memory?tenant={alice}",
    "/v1/memory?session=work",
    "/v1/memory?after={note}",
    "/v1/memory/{note}",
    "/v1/memory/",
    "//v1/memory",
    "/V1/MEMORY",
    "/v1/%6demory",
    "/v1/../v1/memory",
    "/v1/./memory",
    "/v1/credits?key={alice}",
    "/v1/credits/{alice}",
    "/v1/credits?tenant={alice}",
    "/v1/cache?tenant={alice}",
    "/v1/models?tenant={alice}",
    "/v1/responses/{request}",
    "/v1/chat/completions/{request}",
    "/admin%2fcredits",
    "/%61dmin/credits",
    "//admin/credits",
    "/admin/credits/",
    "/v1/../admin/credits",
    "/v1/models/../../admin/credits",
    "/v1/models/%2e%2e/%2e%2e/admin/credits",
    "/admin/credits?api_key={admin}",
    "/admin/memory?tenant={alice}",
    "/admin/memory/sessions",
    "/admin/cache/entries",
    "/admin/requests",
    "/admin/status",
    "/metrics",
    "http://localhost/admin/credits",
    "http://localhost/v1/memory?tenant={alice}",
]


async def test_no_other_spelling_of_a_path_leads_further(tmp_path: Path) -> None:
    async with inhabited(tmp_path) as (house, alice):
        before = await all_of_alice(house, alice.name)
        words = {
            "alice": alice.name,
            "note": alice.notes[0],
            "request": alice.requests[0],
            "admin": ADMIN_TOKEN,
        }
        for target, method, who in itertools.product(SPELLINGS, ("GET", "DELETE", "POST"), ((AS_BOB,), ())):
            body = {"text": "a note"} if method == "POST" else None
            reply, wire = await house.call(method, target.format(**words), body, who)
            require_nothing_of(alice, reply, wire)
            assert reply.status < 500
            if not who:
                assert reply.status in (401, 404, 405)
        assert await all_of_alice(house, alice.name) == before


NAMES: list[dict[str, Any]] = [
    {"user": "{alice}"},
    {"safety_identifier": "{alice}"},
    {"prompt_cache_key": "{alice}"},
    {"metadata": {"tenant": "{alice}", "session": "work", "user_id": "{alice}"}},
    {"previous_response_id": "{request}"},
    {"conversation": "{request}"},
    {"tenant": "{alice}"},
    {"session": "work"},
]


async def test_nothing_in_a_body_names_a_tenant(tmp_path: Path) -> None:
    async with inhabited(tmp_path) as (house, alice):
        for fields, (path, body) in itertools.product(NAMES, ANSWERS.items()):
            said = json.dumps(fields).replace("{alice}", alice.name).replace("{request}", alice.requests[4])
            reply, wire = await house.call("POST", path, {**body, **json.loads(said)}, (AS_BOB,))
            require_nothing_of(alice, reply, wire)
            assert reply.status in (200, 400)
        assert not [prompt for prompt in house.engine.prompts if MARK in prompt]


def outsiders() -> list[Sequence[str]]:
    return [
        (),
        (AS_ADMIN,),
        (f"Authorization: Bearer {ALICE}x",),
        ("Authorization: Bearer",),
        ("x-api-key: ",),
    ]


async def test_without_a_key_there_is_nothing(tmp_path: Path) -> None:
    async with inhabited(tmp_path) as (house, alice):
        before = await all_of_alice(house, alice.name)
        for (method, path), headers in itertools.product(OWN, outsiders()):
            for target in targets(path, alice):
                reply, wire = await house.call(method, target, OWN[method, path], headers)
                assert reply.status == 401
                require_nothing_of(alice, reply, wire)
        for method, path in OPEN:
            reply, wire = await house.call(method, path)
            assert reply.status == 200
            require_nothing_of(alice, reply, wire)
        assert await all_of_alice(house, alice.name) == before


async def test_no_key_administers_not_even_itself(tmp_path: Path) -> None:
    async with inhabited(tmp_path) as (house, alice):
        before = await all_of_alice(house, alice.name)
        for (method, path), body in ADMIN.items():
            for name in (alice.name, house.key(BOB).name):
                for headers in (
                    *disguises(alice)[:4],
                    (),
                    (AS_BOB, f"x-api-key: {ALICE}"),
                    (AS_ADMIN + "x",),
                ):
                    reply, wire = await house.call(method, path.replace("{key}", name), body, headers)
                    assert (reply.status, b"invalid_admin_token" in reply.body) == (401, True)
                    require_nothing_of(alice, reply, wire)
        assert await all_of_alice(house, alice.name) == before
        assert len(await house.ledger.views(limit=9)) == 2


async def test_what_only_the_socket_has_is_not_on_the_port(tmp_path: Path) -> None:
    private = control_app(FakePipeline(), on_stop=lambda grace_s: None, on_drain=lambda: None)
    async with inhabited(tmp_path) as (house, alice):
        only = routes_of(private) - routes_of(house.app)
        assert {("GET", "/admin/status"), ("GET", "/admin/memory"), ("GET", "/admin/cache/entries")} <= only
        for (method, path), who in itertools.product(only, (AS_BOB, AS_ALICE, AS_ADMIN)):
            target = path.format(request_id=alice.requests[0], entry_id=alice.notes[0])
            body = {} if method == "POST" else None
            reply, _ = await house.call(method, target, body, (who,))
            assert (reply.status, b"not_found" in reply.body) == (404, True)
