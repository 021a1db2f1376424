"""``clientlib`` against the daemon, sync and async."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import clientlib
from support.daemon import ECHO, RunningDaemon, running


def test_generate_stream_chat(echo_daemon: RunningDaemon) -> None:
    with clientlib.Client(socket=echo_daemon.socket) as client:
        assert client.generate("so it goes") == "so it goes"
        with client.stream("piece by piece") as pieces:
            assert "".join(pieces) == "piece by piece"
        reply = client.chat([{"role": "user", "content": "hello"}])
        assert reply.text == "hello"
        assert reply.finish_reason == "stop"
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert [model.id for model in client.models()] == ["echo"]
        assert client.status()["model"]["id"] == "echo"
        assert client.requests() == []


def test_calls_of_functions_and_the_way_back(echo_daemon: RunningDaemon) -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "look",
                "parameters": {
                    "type": "object",
                    "properties": {"at": {"type": "string"}},
                    "required": ["at"],
                },
            },
        }
    ]
    asked = {
        "role": "user",
        "content": 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>',
    }
    with clientlib.Client(socket=echo_daemon.socket) as client:
        reply = client.chat([asked], tools=tools, temperature=0)
        [call] = reply.tool_calls
        assert (call.name, call.input, reply.text) == ("look", {"at": "the sky"}, "I look.")
        assert reply.finish_reason == "tool_calls"
        with client.chat_stream([asked], tools=tools, temperature=0) as deltas:
            for _ in deltas:
                pass
        assert [(c.name, c.arguments) for c in deltas.reply().tool_calls] == [(call.name, call.arguments)]
        result = {"role": "tool", "tool_call_id": call.id, "content": "Blue."}
        after = client.chat([asked, reply.message, result, {"role": "user", "content": "Good."}], tools=tools)
        assert after.text == "Good."
        assert after.usage is not None
        assert reply.usage is not None
        # What the model said stands in the next prompt as it was said.
        known = reply.usage.prompt_tokens + reply.usage.completion_tokens - 1
        assert after.usage.cached_tokens == known // 16 * 16


def test_errors_are_typed(echo_daemon: RunningDaemon) -> None:
    with clientlib.Client(socket=echo_daemon.socket) as client:
        with pytest.raises(clientlib.InvalidRequest) as caught:
            client.generate("x", max_tokens=10_000_000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.status == 400


async def _async_calls(socket: Path) -> list[str]:
    async with clientlib.AsyncClient(socket=socket) as client:
        whole = await client.generate("one")
        async with client.stream("two") as pieces:
            streamed = "".join([piece async for piece in pieces])
        reply = await client.chat([{"role": "user", "content": "three"}])
    return [whole, streamed, reply.text]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(echo_daemon: RunningDaemon, backend: str) -> None:
    assert anyio.run(_async_calls, echo_daemon.socket, backend=backend) == ["one", "two", "three"]


def test_no_daemon_says_how_to_start_one(tmp_path: Path) -> None:
    with (
        clientlib.Client(socket=tmp_path / "none.sock") as client,
        pytest.raises(clientlib.DaemonNotRunning) as caught,
    ):
        client.generate("x")
    assert str(tmp_path / "none.sock") in str(caught.value)
    assert "stretto serve" in str(caught.value)


def test_stop_by_clientlib(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO) as daemon:
        with clientlib.Client(socket=daemon.socket) as client:
            client.stop()
        assert daemon.process.wait(90) == 0
