"""Every call of the sync client: what it sends, and what it makes of the reply."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

import clientlib
from support.clientlib_server import MODELS, Peer, Received, ScriptedServer, completion, daemon, reply


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(daemon) as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[clientlib.Client]:
    with clientlib.Client(server.path) as made:
        yield made


def only_answers(server: ScriptedServer) -> list[Received]:
    return [request for request in server.requests if request.target == "/v1/chat/completions"]


def serve(document: object) -> ScriptedServer:
    """A server that has the same reply for everything."""

    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(reply(document))

    return ScriptedServer(script)


class TestGenerate:
    def test_what_is_sent(self, server: ScriptedServer, client: clientlib.Client) -> None:
        answer = client.generate(
            "Grüße 😀",
            system="Be kind.",
            max_tokens=5,
            temperature=0,
            stop=["\n"],
            seed=7,
            top_k=4,
            logit_bias={3: -1.5},
        )
        assert answer == "Grüße 😀"
        (request,) = only_answers(server)
        assert request.json == {
            "model": "tiny",
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Grüße 😀"}],
            "max_tokens": 5,
            "temperature": 0,
            "stop": ["\n"],
            "seed": 7,
            "top_k": 4,
            "logit_bias": {"3": -1.5},
        }
        assert request.headers["host"] == "localhost"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept"] == "application/json"
        assert "authorization" not in request.headers

    def test_unset_options_are_left_to_the_daemon(
        self, server: ScriptedServer, client: clientlib.Client
    ) -> None:
        client.generate("x", top_p=None)
        assert only_answers(server)[0].json == {
            "model": "tiny",
            "messages": [{"role": "user", "content": "x"}],
        }

    def test_the_model_is_asked_for_once(self, server: ScriptedServer, client: clientlib.Client) -> None:
        client.generate("x")
        client.generate("y")
        assert [request.target for request in server.requests] == [
            "/v1/models",
            *["/v1/chat/completions"] * 2,
        ]
        assert server.connections == 1

    def test_a_named_model_is_not_asked_for(self, server: ScriptedServer) -> None:
        with clientlib.Client(server.path, model="mine") as client:
            client.generate("x")
            client.generate("y", model="yours")
        assert [request.json["model"] for request in server.requests] == ["mine", "yours"]

    def test_no_text_is_an_empty_text(self) -> None:
        document = completion("")
        document["choices"][0]["message"]["content"] = None
        with serve(document) as server, clientlib.Client(server.path, model="tiny") as client:
            assert client.generate("x") == ""

    def test_options_of_tomorrow_go_along(self, server: ScriptedServer, client: clientlib.Client) -> None:
        client.generate("x", typical_p=0.3)  # type: ignore[call-arg]
        assert only_answers(server)[0].json["typical_p"] == 0.3

    @pytest.mark.parametrize("name", ["stream", "messages", "stream_options"])
    def test_what_clientlib_sets_itself(self, client: clientlib.Client, name: str) -> None:
        with pytest.raises(TypeError, match=name):
            client.generate("x", **{name: True})  # type: ignore[arg-type]

    def test_what_json_cannot_carry(self, server: ScriptedServer, client: clientlib.Client) -> None:
        with pytest.raises(ValueError, match="JSON"):
            client.generate("x", temperature=math.nan)
        with pytest.raises(ValueError, match="surrogates"):
            client.generate("\ud800")
        with pytest.raises(TypeError, match="prompt"):
            client.generate([{"role": "user"}])  # type: ignore[arg-type]
        assert server.connections == 0


class TestChat:
    def test_reply(self, client: clientlib.Client) -> None:
        reply = client.chat([{"role": "user", "content": "hi"}], n=1)
        assert (reply.text, reply.finish_reason, reply.id, reply.model) == (
            "hi",
            "stop",
            "chatcmpl-0123",
            "tiny",
        )
        assert reply.usage == clientlib.Usage(7, 3, 10, cached_tokens=4)
        assert reply.request_id == "req-1"
        assert reply.logprobs == ()
        assert reply.raw["object"] == "chat.completion"

    def test_choices_logprobs_and_tool_calls(self) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        alternative = {"token": "a", "logprob": -2, "bytes": None}
        token = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [alternative]}
        document = completion("")
        document["choices"] = [
            {"index": 1, "message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"},
            {
                "index": 0,
                "message": {"content": "é"},
                "logprobs": {"content": [token]},
                "finish_reason": "length",
            },
        ]
        with serve(document) as server, clientlib.Client(server.path, model="tiny") as client:
            got = client.chat([{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1, n=2)
        assert got.choices == (
            clientlib.Choice(
                0,
                "é",
                "length",
                (clientlib.TokenLogprob("é", -0.5, "é".encode(), (clientlib.TopLogprob("a", -2.0, None),)),),
            ),
            clientlib.Choice(1, "", "tool_calls", (), (clientlib.ToolCall("call_1", "f", "{}"),)),
        )
        assert got.logprobs == got.choices[0].logprobs
        assert got.choices[1].message == {"role": "assistant", "content": None, "tool_calls": [call]}
        assert got.message == {"role": "assistant", "content": "é"}

    def test_calls_and_reasoning_of_the_first_choice(self) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
        document = completion("")
        document["choices"][0]["message"] = {
            "content": None,
            "tool_calls": [call],
            "reasoning_content": "Hm.",
        }
        document["usage"] = {**document["usage"], "completion_tokens_details": {"reasoning_tokens": 2}}
        with serve(document) as server, clientlib.Client(server.path, model="tiny") as client:
            got = client.chat([{"role": "user", "content": "x"}], tools=[{"type": "function"}])
        [found] = got.tool_calls
        assert (found.name, found.input) == ("f", {"a": [1]})
        assert got.reasoning == "Hm."
        assert got.usage is not None
        assert got.usage.reasoning_tokens == 2
        assert clientlib.ToolCall("c", "f", "").input == {}
        for cut in ('{"a": ', "[1]"):
            with pytest.raises(ValueError, match=r"JSON|Expecting"):
                clientlib.ToolCall("c", "f", cut).input  # noqa: B018  # reading it is what fails

    def test_a_prompt_is_no_conversation(self, client: clientlib.Client) -> None:
        with pytest.raises(TypeError, match="generate"):
            client.chat("hi")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "document",
        [
            [],
            {},
            {"choices": []},
            {"choices": [3]},
            completion("x", usage={"prompt_tokens": "7"}),
            completion("x", usage={"prompt_tokens": True, "completion_tokens": 1}),
            {**completion("x"), "model": None},
            completion("x", choices=[{"message": {"content": 3}}]),
            completion(
                "x", choices=[{"message": {"content": "x"}, "logprobs": {"content": [{"token": "a"}]}}]
            ),
            completion(
                "x",
                choices=[
                    {"message": {}, "logprobs": {"content": [{"token": "a", "logprob": 0, "bytes": [300]}]}}
                ],
            ),
            b"not JSON",
        ],
    )
    def test_a_reply_of_another_shape_is_refused(self, document: object) -> None:
        with serve(document) as server, clientlib.Client(server.path, model="tiny") as client:
            with pytest.raises(clientlib.ProtocolError) as caught:
                client.chat([{"role": "user", "content": "x"}])
        assert caught.value.code == "invalid_reply"


class TestTheRest:
    def test_models(self, client: clientlib.Client) -> None:
        assert client.models() == (clientlib.Model("tiny", 5, "stretto"),)
        assert client.models()[0].raw == MODELS["data"][0]

    def test_no_model_at_all(self) -> None:
        with serve({"object": "list", "data": []}) as server, clientlib.Client(server.path) as client:
            with pytest.raises(clientlib.NotFound, match="serves no model"):
                client.generate("x")

    def test_health(self, client: clientlib.Client) -> None:
        assert client.health() == clientlib.Health(True, "ready")
        assert client.health().raw["model"] == "tiny"

    @pytest.mark.parametrize(
        ("document", "state"),
        [
            ({"status": "draining"}, "draining"),
            ({"error": {"code": "overloaded"}}, "overloaded"),
            ({}, "not ready"),
        ],
    )
    def test_not_ready_is_an_answer(self, document: object, state: str) -> None:
        def script(peer: Peer) -> None:
            peer.request()
            peer.send(reply(document, status="503 Service Unavailable", headers={"Retry-After": "1"}))

        with ScriptedServer(script) as server, clientlib.Client(server.path, retries=3) as client:
            assert client.health() == clientlib.Health(False, state)

    def test_control_plane(self, server: ScriptedServer, client: clientlib.Client) -> None:
        assert client.status() == {"state": "ready", "running": 0}
        assert client.requests() == [{"id": "chatcmpl-9", "phase": "generating"}]
        assert client.cancel("chatcmpl-9") is True
        assert client.cancel("a/b c") is False
        assert client.drain() == {"state": "draining"}
        assert client.stop(grace_s=1.5) == {}
        assert client.stop() == {}
        assert [(request.method, request.target, request.body) for request in server.requests] == [
            ("GET", "/admin/status", b""),
            ("GET", "/admin/requests", b""),
            ("DELETE", "/admin/requests/chatcmpl-9", b""),
            ("DELETE", "/admin/requests/a%2Fb%20c", b""),
            ("POST", "/admin/drain", b""),
            ("POST", "/admin/stop", b'{"grace_s":1.5}'),
            ("POST", "/admin/stop", b"{}"),
        ]
        # stop() is answered with "connection: close".
        assert server.connections == 2

    def test_the_admin_namespace_is_the_same(self, client: clientlib.Client) -> None:
        assert client.admin.status() == client.status()
        assert client.admin.requests() == client.requests()
        assert client.admin.cancel("chatcmpl-9") is True
        assert client.admin.drain() == client.drain()
        assert client.admin.stop(2) == {}

    def test_an_id_is_needed_to_cancel(self, client: clientlib.Client) -> None:
        with pytest.raises(ValueError, match="request_id"):
            client.cancel("")

    def test_where_there_is_no_control_plane(self) -> None:
        def script(peer: Peer) -> None:
            while peer.request():
                peer.send(reply({"error": {"message": "?", "code": "not_found"}}, status="404 Not Found"))

        with ScriptedServer(script) as server, clientlib.Client(server.path) as client:
            with pytest.raises(clientlib.NotFound):
                client.cancel("chatcmpl-9")


def test_over_tcp_with_a_key() -> None:
    with ScriptedServer(daemon, tcp=True) as server:
        with clientlib.Client(base_url=server.base_url + "/v1", api_key="k-1") as client:
            assert client.generate("hello") == "hello"
            with client.stream("a b") as pieces:
                assert list(pieces) == ["a", " b"]
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer k-1"}
        assert {request.headers["host"] for request in server.requests} == {
            server.base_url.removeprefix("http://")
        }
        assert server.connections == 1


def test_a_host_name_is_looked_up() -> None:
    with ScriptedServer(daemon, tcp=True) as server:
        with clientlib.Client(base_url=server.base_url.replace("127.0.0.1", "localhost")) as client:
            assert client.generate("hello") == "hello"


def test_module_functions_use_the_default_socket(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_SOCKET", str(server.path))
    assert clientlib.generate("one") == "one"
    assert "".join(clientlib.stream("one two")) == "one two"
    assert clientlib.chat([{"role": "user", "content": "three"}]).text == "three"
    assert server.connections == 1


def test_module_functions_follow_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_SOCKET", str(server.path))
    assert clientlib.generate("one") == "one"
    with ScriptedServer(daemon) as other:
        monkeypatch.setenv("STRETTO_SOCKET", str(other.path))
        assert clientlib.generate("two") == "two"
        assert other.connections == 1
