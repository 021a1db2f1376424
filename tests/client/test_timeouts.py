"""Limits of time."""

from __future__ import annotations

import math
import socket
import threading
from typing import Any

import pytest

import clientlib
from clientlib.http1 import Wire
from clientlib.timing import Budget, Timeouts
from support.clientlib_server import (
    GUARD_S,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    chunk,
    collect,
    daemon,
    delta_event,
)

SHORT_S = 0.05


class Silent:
    """Reads a request, sends ``head``, and waits for the client to go away; ``gone`` tells that it did."""

    def __init__(self, head: bytes = b"") -> None:
        self._head = head
        self.gone = threading.Event()

    def __call__(self, peer: Peer) -> None:
        if peer.request():
            peer.send(self._head)
            peer.wait_closed()
            self.gone.set()


def test_a_whole_call() -> None:
    silent = Silent()
    with ScriptedServer(silent) as server:
        # Silence is no reason to give up before a whole reply has begun, however short the idle limit.
        with clientlib.Client(server.path, model="tiny", timeouts=Timeouts(idle_s=0.001)) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                client.generate("x", timeout_s=SHORT_S)
        assert (caught.value.phase, caught.value.code) == ("total", "timeout")
        assert "0.05 s" in str(caught.value)
        assert silent.gone.wait(GUARD_S)


def test_the_client_has_a_limit_of_its_own() -> None:
    with ScriptedServer(Silent()) as server:
        with clientlib.Client(server.path, timeouts=Timeouts(total_s=SHORT_S)) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                client.health()
    assert caught.value.phase == "total"


def test_a_whole_reply_that_stops_in_the_middle() -> None:
    silent = Silent(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
    with ScriptedServer(silent) as server:
        with clientlib.Client(server.path, model="tiny", timeouts=Timeouts(idle_s=SHORT_S)) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                client.generate("x")
        assert caught.value.phase == "idle"
        assert silent.gone.wait(GUARD_S)


@pytest.mark.parametrize("head", [b"", STREAM_HEAD + chunk(delta_event("Once"))])
def test_a_stream_that_falls_silent(head: bytes) -> None:
    silent = Silent(head)
    with ScriptedServer(silent) as server:
        with clientlib.Client(server.path, model="tiny", timeouts=Timeouts(idle_s=SHORT_S)) as client:
            seen: list[str] = []
            stream = client.stream("x")
            with pytest.raises(clientlib.Timeout) as caught:
                collect(stream, seen)
        assert caught.value.phase == "idle"
        assert caught.value.text == "".join(seen) == ("Once" if head else "")
        assert silent.gone.wait(GUARD_S)


def test_a_stream_may_have_a_total_limit() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD, chunk(delta_event("Once")))
        try:
            while True:  # pings keep it from being idle
                peer.send(chunk(b": ping\n\n"))
        except OSError:
            gone.set()

    with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
        with client.stream("x", timeout_s=SHORT_S) as pieces:
            assert next(pieces) == "Once"
            with pytest.raises(clientlib.Timeout) as caught:
                next(pieces)
        assert (caught.value.phase, caught.value.text) == ("total", "Once")
        assert gone.wait(GUARD_S)


def test_a_server_that_does_not_read() -> None:
    over = threading.Event()

    def script(_: Peer) -> None:
        over.wait(GUARD_S)

    with ScriptedServer(script) as server:
        with clientlib.Client(server.path, model="tiny", timeouts=Timeouts(idle_s=SHORT_S)) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                client.generate("x" * 8_000_000)
        assert caught.value.phase == "write"
        over.set()


class TestFullBacklog:
    """A listener that does not accept: Linux refuses more connections with EAGAIN, on which nothing can be waited for."""

    @pytest.fixture
    def server(self) -> Any:
        with ScriptedServer(daemon, backlog=0, accepting=False) as server:
            held = []
            while True:
                sock = socket.socket(socket.AF_UNIX)
                sock.setblocking(False)
                try:
                    sock.connect(str(server.path))
                except BlockingIOError:
                    sock.close()
                    break
                held.append(sock)
            self.waiting = len(held)
            yield server
            for sock in held:
                sock.close()

    def test_the_connection_is_tried_until_there_is_room(self, server: ScriptedServer) -> None:
        naps: list[float] = []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                for _ in range(self.waiting):
                    server.accept_one()
                server.start_accepting()

        with clientlib.Client(server.path, sleep=sleep) as client:
            assert client.models()[0].id == "tiny"
        assert naps == [0.005, 0.01, 0.02]

    def test_but_not_for_ever(self, server: ScriptedServer) -> None:
        with clientlib.Client(server.path, timeouts=Timeouts(connect_s=SHORT_S)) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                client.models()
        assert caught.value.phase == "connect"


class FakeLink:
    """As much of a link as a budget looks at."""

    def __init__(self) -> None:
        self.sock = object()
        self.wire = Wire()


class TestBudget:
    """The arithmetic, by a clock of our own."""

    def make(self, total_s: float, *, stream: bool) -> Budget:
        self.now = 100.0
        return Budget(Timeouts(connect_s=5, idle_s=60), total_s, stream=stream, clock=lambda: self.now)

    def limit(self, budget: Budget, *, begun: bool = False, write: bool = False) -> float:
        link: Any = FakeLink()
        link.wire.reply_begun = begun
        step: Any = next(budget.writable(link) if write else budget.readable(link))
        assert step.write is write
        limit_s: float = step.limit_s
        return limit_s

    def test_what_is_waited_for_how_long(self) -> None:
        whole = self.make(600, stream=False)
        assert self.limit(whole) == 600
        assert self.limit(whole, begun=True) == 60
        assert self.limit(whole, write=True) == 60
        self.now = 650
        assert self.limit(whole) == 50
        assert self.limit(whole, begun=True) == 50
        stream = self.make(math.inf, stream=True)
        assert self.limit(stream) == 60
        assert self.limit(self.make(math.inf, stream=False)) == math.inf

    def test_when_it_is_used_up(self) -> None:
        budget = self.make(10, stream=True)
        self.now = 110
        with pytest.raises(clientlib.Timeout) as caught:
            self.limit(budget)
        assert caught.value.phase == "total"

    @pytest.mark.parametrize(("total_s", "phase"), [(600, "connect"), (3, "total")])
    def test_connecting(self, total_s: float, phase: str) -> None:
        budget = self.make(total_s, stream=False)
        deadline = budget.connect_deadline()
        assert budget.until(deadline) == min(5, total_s)
        self.now = 106
        with pytest.raises(clientlib.Timeout) as caught:
            budget.until(deadline)
        assert caught.value.phase == phase

    def test_pauses(self) -> None:
        budget = self.make(10, stream=False)
        assert budget.allows(9.9)
        assert not budget.allows(10)
