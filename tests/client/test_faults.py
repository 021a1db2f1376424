"""Servers that are absent, cut off, or talk nonsense."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import clientlib
from support.clientlib_fork import in_child
from support.clientlib_server import (
    STREAM_END,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    answer_events,
    chunk,
    collect,
    completion,
    daemon,
    error,
    reply,
)

STREAM = STREAM_HEAD + b"".join(chunk(piece) for piece in answer_events(["Once", " upon"])) + STREAM_END
WHOLE = reply(completion("Once upon"))


def cutting(data: bytes) -> ScriptedServer:
    """Sends ``data`` to every request, then closes."""

    def script(peer: Peer) -> None:
        if peer.request():
            peer.send(data)

    return ScriptedServer(script)


def client_of(server: ScriptedServer) -> clientlib.Client:
    return clientlib.Client(server.path, model="tiny")


class TestNobodyThere:
    def check(self, client: clientlib.Client, address: str) -> None:
        for call in (lambda: client.generate("x"), client.health, lambda: next(client.stream("x"))):
            with pytest.raises(clientlib.DaemonNotRunning) as caught:
                call()
            assert caught.value.address == address
            assert caught.value.code == "daemon_not_running"
            assert address in str(caught.value)
            assert "`stretto serve`" in str(caught.value)

    def test_no_socket(self, tmp_path: Path) -> None:
        self.check(clientlib.Client(tmp_path / "none" / "s"), str(tmp_path / "none" / "s"))

    def test_a_socket_that_a_dead_daemon_left(self, short_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(os.fspath(short_path))
        self.check(clientlib.Client(short_path), str(short_path))

    def test_a_file_in_its_place(self, short_path: Path) -> None:
        short_path.write_text("x")
        self.check(clientlib.Client(short_path), str(short_path))
        self.check(clientlib.Client(short_path / "s"), str(short_path / "s"))

    def test_no_listener_on_the_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        self.check(clientlib.Client(base_url=f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{port}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A path that fits into a socket's address."""
    with tempfile.TemporaryDirectory(prefix="cl-") as directory:
        yield Path(directory) / "s"


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    with pytest.raises(clientlib.ConnectFailed) as caught:
        clientlib.Client(tmp_path / ("x" * 200)).health()
    assert caught.value.code == "socket_path_too_long"


def refused_code(path: Path) -> str:
    try:
        clientlib.Client(path).health()
    except clientlib.ConnectFailed as failure:
        return failure.code
    return "none"


def test_a_socket_of_another_user() -> None:
    with ScriptedServer(daemon) as server:
        server.path.chmod(0)
        if os.geteuid():
            assert refused_code(server.path) == "permission_denied"
            return

        def as_somebody_else() -> bool:  # root may use every socket
            os.setuid(65534)
            return refused_code(server.path) == "permission_denied"

        assert in_child(as_somebody_else) == 0


def test_a_host_that_does_not_exist() -> None:
    for name in ("no-such-host.invalid", "x" * 70 + ".invalid"):
        with pytest.raises(clientlib.ConnectFailed) as caught:
            clientlib.Client(base_url=f"http://{name}:1").health()
        assert caught.value.code == "unknown_host"


def test_a_whole_reply_cut_anywhere() -> None:
    for at in (0, 1, 20, WHOLE.index(b"\r\n\r\n") + 2, len(WHOLE) - 1):
        with cutting(WHOLE[:at]) as server, client_of(server) as client:
            with pytest.raises(clientlib.ConnectionLost) as caught:
                client.generate("x")
            assert caught.value.request_sent, at
            assert server.connections == 1, "an answer must not be asked for twice"
            assert client.stats() == {"idle": 0}


def test_a_stream_cut_anywhere_carries_the_text_so_far() -> None:
    state = {"at": 0}

    def script(peer: Peer) -> None:
        if peer.request():
            peer.send(STREAM[: state["at"]])

    first, second = STREAM.index(b"Once") + 4, STREAM.index(b" upon") + 5
    with ScriptedServer(script) as server, client_of(server) as client:
        for at in range(0, len(STREAM) - len(b"data: [DONE]\n\n\r\n" + STREAM_END), 7):
            state["at"] = at
            seen: list[str] = []
            stream = client.stream("x")
            with pytest.raises(clientlib.ConnectionLost) as caught:
                collect(stream, seen)
            assert caught.value.text == "".join(seen)
            assert len(seen) <= (at >= first) + (at >= second)
        assert client.stats() == {"idle": 0}


def test_a_stream_that_ends_properly_but_too_soon() -> None:
    body = b"".join(chunk(piece) for piece in answer_events(["Once"])[:-1])
    with cutting(STREAM_HEAD + body + STREAM_END) as server, client_of(server) as client:
        with client.stream("x") as pieces:
            assert next(pieces) == "Once"
            with pytest.raises(clientlib.ConnectionLost) as caught:
                next(pieces)
    assert (caught.value.code, caught.value.text) == ("stream_truncated", "Once")


def test_done_without_the_end_of_the_reply_is_an_end() -> None:
    body = b"".join(chunk(piece) for piece in answer_events(["Once"]))
    for after in (b"", b"garbage\r\n"):
        with cutting(STREAM_HEAD + body + after) as server, client_of(server) as client:
            assert list(client.stream("x")) == ["Once"]
            assert client.stats() == {"idle": 0}


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000,
        b"\x00" * 100,
    ],
)
def test_garbage(data: bytes) -> None:
    def script(peer: Peer) -> None:
        if peer.request():
            peer.send(data)
            peer.wait_closed()

    with ScriptedServer(script) as server, client_of(server) as client:
        with pytest.raises(clientlib.ProtocolError):
            client.generate("x", timeout_s=10)
        assert client.stats() == {"idle": 0}


def test_what_may_still_become_a_reply_is_waited_for() -> None:
    def script(peer: Peer) -> None:
        if peer.request():
            peer.send(b"HTTP/1.1 200 ")
            peer.wait_closed()

    with ScriptedServer(script) as server, client_of(server) as client, pytest.raises(clientlib.Timeout):
        client.generate("x", timeout_s=0.05)


def test_bytes_after_the_reply_spoil_the_connection() -> None:
    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(WHOLE + b"more")

    with ScriptedServer(script) as server, client_of(server) as client:
        assert client.generate("x") == "Once upon"
        assert client.generate("x") == "Once upon"
        assert server.connections == 2


def test_interim_replies_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    with cutting(interim + WHOLE) as server, client_of(server) as client:
        assert client.generate("x") == "Once upon"


def test_a_redirect_is_not_followed() -> None:
    with (
        cutting(reply(b"", status="302 Found", headers={"Location": "/x"})) as server,
        client_of(server) as client,
    ):
        with pytest.raises(clientlib.ProtocolError) as caught:
            client.generate("x")
    assert caught.value.status == 302


def test_a_refusal_sent_before_the_request_was_read() -> None:
    """A body beyond the server's limit: it answers 413 and closes while we are still sending."""
    refusal = reply(error("request_too_large"), status="413 Content Too Large", close=True)

    def script(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(refusal)

    with ScriptedServer(script) as server, client_of(server) as client:
        with pytest.raises(clientlib.InvalidRequest) as caught:
            client.generate("x" * 8_000_000)
        assert (caught.value.code, caught.value.status) == ("request_too_large", 413)
        assert client.stats() == {"idle": 0}


def test_a_connection_that_breaks_while_sending() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1000)

    with ScriptedServer(script) as server, client_of(server) as client:
        with pytest.raises(clientlib.ConnectionLost) as caught:
            client.generate("x" * 8_000_000)
        assert not caught.value.request_sent
        assert server.connections == 1
