"""What is tried again, and what never is."""

from __future__ import annotations

import threading

import pytest

import clientlib
from clientlib.pool import ConnectionPool
from support.clientlib_server import (
    GUARD_S,
    MODELS,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    chunk,
    completion,
    daemon,
    delta_event,
    error,
    reply,
)

BUSY = reply(
    error("queue_full", kind="rate_limit_error"), status="429 Too Many Requests", headers={"Retry-After": "2"}
)
DRAINING = reply(
    error("draining", kind="server_error"), status="503 Service Unavailable", headers={"Retry-After": "3"}
)
ANSWER = reply(completion("done"))


class Naps(list[float]):
    """A sleep that only takes notes."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def replying(*replies: bytes) -> ScriptedServer:
    """Sends these replies, one a request, whatever the connection."""
    left = list(replies)

    def script(peer: Peer) -> None:
        while left and peer.request():
            peer.send(left.pop(0))

    return ScriptedServer(script)


class TestComingBack:
    def test_not_unless_asked(self) -> None:
        naps = Naps()
        with replying(BUSY) as server, clientlib.Client(server.path, model="tiny", sleep=naps) as client:
            with pytest.raises(clientlib.QueueFull) as caught:
                client.generate("x")
            assert (caught.value.retry_after_s, caught.value.status) == (2.0, 429)
            assert (naps, len(server.requests)) == ([], 1)

    def test_as_often_as_asked_and_when_told(self) -> None:
        naps = Naps()
        with replying(BUSY, DRAINING, ANSWER) as server:
            with clientlib.Client(server.path, model="tiny", retries=2, sleep=naps) as client:
                assert client.generate("x") == "done"
            assert naps == [2.0, 3.0]
            assert [request.json for request in server.requests] == [server.requests[0].json] * 3
            assert server.connections == 1

    def test_not_more_often(self) -> None:
        naps = Naps()
        with replying(BUSY, DRAINING, ANSWER) as server:
            with clientlib.Client(server.path, model="tiny", retries=1, sleep=naps) as client:
                with pytest.raises(clientlib.Unavailable):
                    client.generate("x")
            assert naps == [2.0]

    def test_streams_too(self) -> None:
        naps = Naps()
        stream = STREAM_HEAD + chunk(delta_event("a") + b"data: [DONE]\n\n") + b"0\r\n\r\n"
        with replying(BUSY, stream) as server:
            with clientlib.Client(server.path, model="tiny", retries=1, sleep=naps) as client:
                assert list(client.stream("x")) == ["a"]
            assert naps == [2.0]

    def test_not_without_a_time_to_come_back(self) -> None:
        naps = Naps()
        silent = reply(error("queue_full"), status="429 Too Many Requests")
        with (
            replying(silent) as server,
            clientlib.Client(server.path, model="tiny", retries=5, sleep=naps) as client,
        ):
            with pytest.raises(clientlib.QueueFull):
                client.generate("x")
        assert naps == []

    def test_not_beyond_the_limit_of_the_call(self) -> None:
        naps = Naps()
        with (
            replying(BUSY) as server,
            clientlib.Client(server.path, model="tiny", retries=5, sleep=naps) as client,
        ):
            with pytest.raises(clientlib.QueueFull):
                client.generate("x", timeout_s=1.5)
        assert naps == []

    @pytest.mark.parametrize(
        "status", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "500 Oops", "502 Bad Gateway"]
    )
    def test_other_refusals_are_final(self, status: str) -> None:
        naps = Naps()
        refusal = reply(error("no"), status=status, headers={"Retry-After": "1"})
        with (
            replying(refusal) as server,
            clientlib.Client(server.path, model="tiny", retries=5, sleep=naps) as client,
        ):
            with pytest.raises(clientlib.ClientError):
                client.generate("x")
        assert naps == []


class TestStaleConnections:
    def test_closed_while_idle_is_noticed_before_sending(self) -> None:
        closed = threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(ANSWER)
            peer.close()
            closed.set()

        with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
            for _ in range(3):
                closed.clear()
                assert client.generate("x") == "done"
                assert closed.wait(GUARD_S)
            assert server.connections == 3

    @pytest.mark.parametrize(("method", "again"), [("models", True), ("generate", False)])
    def test_closed_at_the_moment_of_use(self, method: str, again: bool) -> None:
        """Each connection takes one request more than it answers: the classic keep-alive race."""

        def script(peer: Peer) -> None:
            first = peer.request()
            peer.send(reply(MODELS) if first and first.method == "GET" else ANSWER)
            peer.request()

        with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
            client.models()
            if again:
                assert client.models()[0].id == "tiny"
                assert (server.connections, len(server.requests)) == (2, 3)
            else:
                # The daemon may have begun to compute it: only the caller can say whether to ask again.
                with pytest.raises(clientlib.ConnectionLost):
                    client.generate("x")
                assert (server.connections, len(server.requests)) == (1, 2)

    def test_not_sent_in_full_is_sent_again(self) -> None:
        """The server reads a little of the second request and closes: it cannot have acted on it."""
        count = {"connections": 0}

        def script(peer: Peer) -> None:
            count["connections"] += 1
            if count["connections"] > 1:
                daemon(peer)
                return
            peer.request()
            peer.send(reply(MODELS))
            peer.sock.recv(10)

        with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
            client.models()
            text = "x" * 8_000_000
            assert client.generate(text) == text
            assert server.connections == 2

    def test_never_after_a_byte_of_the_reply(self) -> None:
        def script(peer: Peer) -> None:
            peer.request()
            peer.send(reply(MODELS))
            peer.request()
            peer.send(b"H")

        with ScriptedServer(script) as server, clientlib.Client(server.path) as client:
            client.models()
            with pytest.raises(clientlib.ConnectionLost):
                client.models()
            assert (server.connections, len(server.requests)) == (1, 2)

    def test_a_new_connection_is_not_tried_twice(self) -> None:
        def script(peer: Peer) -> None:
            peer.request()

        with ScriptedServer(script) as server, clientlib.Client(server.path) as client:
            with pytest.raises(clientlib.ConnectionLost):
                client.models()
            assert server.connections == 1

    def test_idle_for_long_is_not_used(self) -> None:
        now = {"s": 0.0}
        with ScriptedServer(daemon) as server:
            client = clientlib.Client(server.path)
            client._session.pool._clock = lambda: now["s"]
            client.models()
            now["s"] += 3.9
            client.models()
            assert server.connections == 1
            now["s"] += 4.1
            client.models()
            assert server.connections == 2
            client.close()


def test_the_model_that_is_gone_is_looked_up_again() -> None:
    other = {"object": "list", "data": [{"id": "other"}]}
    gone = reply(error("model_not_found", param="model"), status="404 Not Found")
    with replying(reply(MODELS), ANSWER, gone, reply(other), ANSWER, gone, reply(other), gone) as server:
        with clientlib.Client(server.path) as client:
            assert client.generate("x") == "done"
            assert client.generate("x") == "done"
            with pytest.raises(clientlib.NotFound):
                client.generate("x")
        posts = [request.json["model"] for request in server.requests if request.method == "POST"]
        assert posts == ["tiny", "tiny", "other", "other", "other"]


def test_a_model_that_was_named_is_not_replaced() -> None:
    gone = reply(error("model_not_found", param="model"), status="404 Not Found")
    with replying(gone) as server, clientlib.Client(server.path, model="mine") as client:
        with pytest.raises(clientlib.NotFound) as caught:
            client.generate("x")
        assert caught.value.code == "model_not_found"
        assert len(server.requests) == 1


def test_a_closed_client_keeps_no_connection() -> None:
    with ScriptedServer(daemon) as server:
        client = clientlib.Client(server.path)
        client.models()
        assert client.stats() == {"idle": 1}
        client.close()
        assert client.stats() == {"idle": 0}
        assert client.models()
        assert client.stats() == {"idle": 0}


def test_the_pool_keeps_only_so_many() -> None:
    with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:
        pool = ConnectionPool(max_idle=2)
        client._session.pool.close()
        streams = [client.stream(f"x{number}") for number in range(3)]
        for stream in streams:
            stream._core._pool = pool
            next(stream)
        assert [list(stream) for stream in streams] == [[], [], []]
        assert pool.stats() == {"idle": 2}
        pool.close()
        assert pool.stats() == {"idle": 0}
        assert pool.closed
