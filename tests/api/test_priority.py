"""Who may ask for which priority, by which field, on the public port and on the socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stretto.engine import Generation, SequenceRequest
from support.ledger_books import ALICE
from support.tenant_house import House, open_house

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/completions": {"model": "echo", "prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"model": "echo", "input": "hello", "max_output_tokens": 4},
}
TIERED = [path for path in BODIES if path != "/v1/messages"]
AS_ALICE = f"Authorization: Bearer {ALICE}"


def listen(house: House, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The priorities that the engine is told from now on."""
    told: list[str] = []
    submit = house.engine.submit

    def listening(*requests: SequenceRequest) -> Generation:
        told.extend(request.priority for request in requests)
        return submit(*requests)

    monkeypatch.setattr(house.engine, "submit", listening)
    return told


async def ask(house: House, path: str, headers: Sequence[str], **fields: Any) -> tuple[int, Any]:
    extra = ("X-Stretto-Cache: off", "X-Stretto-Memory: off")
    reply, _ = await house.call("POST", path, {**BODIES[path], **fields}, (*headers, *extra))
    return reply.status, json.loads(reply.body)


async def test_a_key_s_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(tmp_path) as house:
        told = listen(house, monkeypatch)
        for path in BODIES:
            for headers in ((), ("X-Stretto-Priority: background",), ("X-Fuuga-Priority: Normal",)):
                assert (await ask(house, path, (AS_ALICE, *headers)))[0] == 200
            status, body = await ask(house, path, (AS_ALICE, "X-Stretto-Priority: high"))
            assert status == 403
            assert "x-stretto-priority" in body["error"]["message"]
            status, body = await ask(house, path, (AS_ALICE, "X-Stretto-Priority: urgent"))
            assert status == 400
            assert "high, normal, background" in body["error"]["message"]
        assert told == ["normal", "background", "normal"] * len(BODIES)


async def test_the_tier_of_a_body_counts_where_the_head_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(tmp_path) as house:
        told = listen(house, monkeypatch)
        for path in TIERED:
            for headers in ((), ("X-Stretto-Priority: normal",)):
                assert (await ask(house, path, (AS_ALICE, *headers), service_tier="flex"))[0] == 200
            assert (await ask(house, path, (AS_ALICE,), service_tier="priority"))[0] == 200
        assert (await ask(house, "/v1/messages", (AS_ALICE,), service_tier="standard_only"))[0] == 200
        assert told == ["background", "normal", "normal"] * len(TIERED) + ["normal"]
        status, body = await ask(house, TIERED[0], (AS_ALICE,), priority=-1)
        assert (status, body["error"]["param"]) == (400, "priority")
        assert "x-stretto-priority" in body["error"]["remedy"]


async def test_the_owner_goes_before_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(tmp_path, socket=True) as house:
        told = listen(house, monkeypatch)
        for path in BODIES:
            assert (await ask(house, path, ("X-Stretto-Priority: high",)))[0] == 200
        assert (await ask(house, TIERED[0], (AS_ALICE, "X-Stretto-Priority: high")))[0] == 403
        assert told == ["high"] * len(BODIES)
