"""Streams of the sync client: pieces, ends, and leaving early."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

import clientlib
from clientlib.assembly import ChatAssembler
from clientlib.http1 import HttpRequest, Mark, Wire
from clientlib.sse import SseParser
from support.clientlib_server import (
    GUARD_S,
    STREAM_END,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    answer_events,
    chunk,
    daemon,
    delta_event,
    error,
    event,
    reply,
    usage_event,
)

WHOLE = STREAM_HEAD + b"".join(chunk(piece) for piece in answer_events(["Grü", "ße ", "😀"])) + STREAM_END


def streaming(*pieces: bytes) -> ScriptedServer:
    """A server that answers every request with these bytes, one send each."""

    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(*pieces)

    return ScriptedServer(script)


class Held:
    """A script that sends the begin of an answer, then nothing; ``gone`` is set when the client has closed."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces or (chunk(delta_event("Once")), chunk(delta_event(" upon")))
        self.gone = threading.Event()

    def __call__(self, peer: Peer) -> None:
        if peer.request():
            peer.send(STREAM_HEAD, *self._pieces)
            peer.wait_closed()
            self.gone.set()


def client_of(server: ScriptedServer) -> clientlib.Client:
    return clientlib.Client(server.path, model="tiny")


def test_pieces_then_all_that_is_known() -> None:
    with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:
        with client.stream("one two three", seed=1) as pieces:
            assert pieces.request_id == "chatcmpl-0123"
            assert pieces.usage is None
            assert next(pieces) == "one"
            assert pieces.text == "one"
            assert pieces.finish_reason is None
            assert list(pieces) == [" two", " three"]
            assert pieces.finish_reason == "stop"
            assert pieces.usage == clientlib.Usage(7, 3, 10, 4)
            answer = pieces.reply()
        assert (answer.text, answer.id, answer.model, answer.created) == (
            "one two three",
            "chatcmpl-0123",
            "tiny",
            1_700_000_000,
        )
        sent = server.requests[-1]
        assert sent.json["stream"] is True
        assert sent.json["stream_options"] == {"include_usage": True}
        assert sent.headers["accept"] == "text/event-stream"
        # An exhausted stream gives its connection back.
        assert client.stats() == {"idle": 1}
        client.models()
        assert server.connections == 1


def read_cut(*pieces: bytes) -> str:
    """The text of an answer that comes in these reads, without any socket."""
    wire, parser, assembler = Wire(), SseParser(), ChatAssembler(None)
    wire.start(HttpRequest("GET", "/", "localhost"))
    for piece in pieces:
        wire.receive(piece)
        while (happened := wire.next_event()) is not Mark.NEED_DATA:
            if happened is Mark.END:
                assert assembler.done
                return assembler.text
            if isinstance(happened, bytes):
                for sent in parser.feed(happened):
                    assembler.feed(sent.data)
    raise AssertionError("no end")


def test_every_place_to_cut_gives_the_same_text() -> None:
    first, second = (
        event({"choices": [{"index": 0, "delta": {"content": text}}]}, ascii_only=False)
        for text in ("Grü", "ße 😀")
    )
    pieces = (b": ping\n\n", first + second[:-9], second[-9:], event("[DONE]"))
    whole = b"".join(
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *map(chunk, pieces), STREAM_END]
    )
    for at in range(1, len(whole)):
        assert read_cut(whole[:at], whole[at:]) == "Grüße 😀", at


def test_byte_by_byte() -> None:
    with streaming(*(WHOLE[at : at + 1] for at in range(len(WHOLE)))) as server, client_of(server) as client:
        assert list(client.stream("x")) == ["Grü", "ße ", "😀"]


def test_pings_and_odd_chunks() -> None:
    middle = b"".join(answer_events(["a", "b"]))
    body = b": ping\r\n\r\n" + middle[:30] + middle[30:]
    with (
        streaming(STREAM_HEAD, chunk(body[:17]), chunk(body[17:]), STREAM_END) as server,
        client_of(server) as client,
    ):
        assert list(client.stream("x")) == ["a", "b"]


def test_a_body_that_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(head, *answer_events(["a"]))

    with ScriptedServer(script) as server, client_of(server) as client:
        assert list(client.stream("x")) == ["a"]
        assert client.stats() == {"idle": 0}


def test_chat_stream_gives_deltas() -> None:
    token = {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []}
    logprobs = event({"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [token]}}]})
    events = [
        delta_event("a"),
        delta_event("A", index=1),
        logprobs,
        delta_event(finish="length"),
        delta_event(finish="stop", index=1),
        usage_event(),
        event("[DONE]"),
    ]
    with streaming(STREAM_HEAD, *map(chunk, events), STREAM_END) as server, client_of(server) as client:
        with client.chat_stream([{"role": "user", "content": "x"}], n=2, logprobs=True) as deltas:
            got = list(deltas)
            answer = deltas.reply()
    scored = clientlib.TokenLogprob("b", -1.0, b"b")
    assert got == [
        clientlib.Delta(0, "a"),
        clientlib.Delta(1, "A"),
        clientlib.Delta(0, "b", None, (scored,)),
        clientlib.Delta(0, "", "length"),
        clientlib.Delta(1, "", "stop"),
    ]
    assert answer.choices == (
        clientlib.Choice(0, "ab", "length", (scored,)),
        clientlib.Choice(1, "A", "stop"),
    )


def test_tool_calls_are_put_together() -> None:
    def piece(**call: object) -> bytes:
        return delta_event(tool_calls=[call])

    events = [
        piece(index=0, id="call_1", type="function", function={"name": "look", "arguments": ""}),
        piece(index=0, function={"arguments": '{"a"'}),
        piece(index=1, id="call_2", type="function", function={"name": "go", "arguments": "{}"}),
        piece(index=0, function={"arguments": ": 1}"}),
        delta_event(finish="tool_calls"),
        event("[DONE]"),
    ]
    with streaming(STREAM_HEAD, *map(chunk, events), STREAM_END) as server, client_of(server) as client:
        with client.chat_stream([{"role": "user", "content": "x"}], tools=[]) as deltas:
            assert [
                delta.raw["delta"]["tool_calls"][0]["index"] for delta in deltas if not delta.finish_reason
            ] == [0, 0, 1, 0]
        assert deltas.reply().choices[0].tool_calls == (
            clientlib.ToolCall("call_1", "look", '{"a": 1}'),
            clientlib.ToolCall("call_2", "go", "{}"),
        )


def test_reasoning_comes_in_pieces_of_its_own() -> None:
    events = [
        delta_event(reasoning_content="Hm"),
        delta_event(reasoning_content="…"),
        delta_event("So."),
        delta_event(finish="stop"),
    ]
    data = [*map(chunk, events), chunk(event("[DONE]"))]
    with streaming(STREAM_HEAD, *data, STREAM_END) as server, client_of(server) as client:
        with client.chat_stream([{"role": "user", "content": "x"}]) as deltas:
            assert [(delta.text, delta.reasoning) for delta in deltas] == [
                ("", "Hm"),
                ("", "…"),
                ("So.", ""),
                ("", ""),
            ]
        assert (deltas.reply().reasoning, deltas.reply().text) == ("Hm…", "So.")
    with streaming(STREAM_HEAD, *data, STREAM_END) as server, client_of(server) as client:
        with client.stream("x") as pieces:
            assert list(pieces) == ["So."]


class TestLeavingEarly:
    def test_the_with_block(self) -> None:
        held = Held()
        with ScriptedServer(held) as server, client_of(server) as client:
            with client.stream("x") as pieces:
                assert next(pieces) == "Once"
            assert held.gone.wait(GUARD_S)
            assert client.stats() == {"idle": 0}
            with pytest.raises(clientlib.ConnectionLost) as caught:
                next(pieces)
            assert (caught.value.code, caught.value.text) == ("stream_closed", "Once")

    def test_break_without_with(self) -> None:
        held = Held()
        with ScriptedServer(held) as server, client_of(server) as client:
            for piece in client.stream("x"):
                assert piece == "Once"
                break
            gc.collect()
            assert held.gone.wait(GUARD_S)

    def test_an_exception_in_the_block(self) -> None:
        held = Held()
        with ScriptedServer(held) as server, client_of(server) as client:
            with pytest.raises(KeyError), client.stream("x") as pieces:
                raise KeyError(next(pieces))
            assert held.gone.wait(GUARD_S)

    def test_ctrl_c(self) -> None:
        read, gone = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(STREAM_HEAD, chunk(delta_event("Once")))
            assert read.wait(GUARD_S)
            os.kill(os.getpid(), signal.SIGINT)
            # Python sees a signal that comes just before a call that blocks when the next one ends the call.
            peer.sock.settimeout(2)
            try:
                peer.wait_closed()
            except TimeoutError:
                os.kill(os.getpid(), signal.SIGINT)
                peer.sock.settimeout(GUARD_S)
                peer.wait_closed()
            gone.set()

        with ScriptedServer(script) as server, client_of(server) as client:
            stream = client.stream("x")
            assert next(stream) == "Once"

            def wait_for_more() -> None:
                read.set()
                next(stream)

            with pytest.raises(KeyboardInterrupt), stream:
                wait_for_more()
            assert gone.wait(GUARD_S)

    def test_close_from_another_thread_wakes_the_reader(self) -> None:
        held = Held()
        with ScriptedServer(held) as server, client_of(server) as client:
            stream = client.stream("x")
            seen: list[str] = []
            failures: list[clientlib.ClientError] = []
            two = threading.Event()

            def read() -> None:
                try:
                    for piece in stream:
                        seen.append(piece)
                        if len(seen) == 2:
                            two.set()
                except clientlib.ClientError as failure:
                    failures.append(failure)

            reader = threading.Thread(target=read)
            reader.start()
            assert two.wait(GUARD_S)
            stream.close()
            reader.join(GUARD_S)
            assert not reader.is_alive()
            assert [failure.code for failure in failures] == ["stream_closed"]
            assert failures[0].text == "Once upon"
            assert held.gone.wait(GUARD_S)

    def test_close_while_the_reply_has_not_begun(self) -> None:
        asked, gone = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            asked.set()
            peer.wait_closed()
            gone.set()

        with ScriptedServer(script) as server, client_of(server) as client:
            stream = client.stream("x")
            failures: list[str] = []

            def read() -> None:
                try:
                    next(stream)
                except clientlib.ClientError as failure:
                    failures.append(failure.code)

            reader = threading.Thread(target=read)
            reader.start()
            assert asked.wait(GUARD_S)
            stream.close()
            reader.join(GUARD_S)
            assert failures == ["stream_closed"]
            assert gone.wait(GUARD_S)

    def test_closing_costs_nothing_before_and_after(self) -> None:
        with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:
            never = client.stream("x")
            never.close()
            assert server.connections == 0
            with pytest.raises(clientlib.ConnectionLost):
                next(never)
            done = client.stream("x")
            assert list(done) == ["x"]
            done.close()
            done.close()
            assert list(done) == []
            assert client.stats() == {"idle": 1}


class TestErrorsInTheStream:
    def test_an_error_frame(self) -> None:
        frame = event(error("engine_error", kind="server_error", remedy="Ask again."))
        events = chunk(delta_event("Once") + frame + event("[DONE]"))
        with streaming(STREAM_HEAD, events, STREAM_END) as server, client_of(server) as client:
            with client.stream("x") as pieces:
                assert next(pieces) == "Once"
                with pytest.raises(clientlib.ServerError) as caught:
                    next(pieces)
                assert list(pieces) == []
            assert client.stats() == {"idle": 0}
        failure = caught.value
        assert (failure.code, failure.text, failure.request_id) == ("engine_error", "Once", "chatcmpl-0123")
        assert (failure.status, failure.remedy) == (500, "Ask again.")

    def test_a_refusal_comes_before_the_first_piece(self) -> None:
        def script(peer: Peer) -> None:
            while peer.request():
                peer.send(reply(error("context_length_exceeded"), status="400 Bad Request"))

        with ScriptedServer(script) as server, client_of(server) as client:
            with pytest.raises(clientlib.ContextLengthExceeded), client.stream("x"):
                raise AssertionError
            # A refusal is a whole reply, so the connection is still good.
            assert client.stats() == {"idle": 1}
            with pytest.raises(clientlib.ContextLengthExceeded):
                next(client.stream("x"))
            assert server.connections == 1

    @pytest.mark.parametrize(
        "data",
        [
            b"data: not json\n\n",
            b"data: 3\n\n",
            event({"choices": 3}),
            event({"choices": [{"delta": {"content": 1}}]}),
        ],
    )
    def test_what_is_no_chunk(self, data: bytes) -> None:
        with (
            streaming(STREAM_HEAD, chunk(delta_event("Once")), chunk(data)) as server,
            client_of(server) as client,
        ):
            with client.stream("x") as pieces:
                assert next(pieces) == "Once"
                with pytest.raises(clientlib.ProtocolError) as caught:
                    next(pieces)
        assert (caught.value.code, caught.value.text) == ("invalid_reply", "Once")

    def test_an_error_that_is_only_a_text(self) -> None:
        with streaming(STREAM_HEAD, chunk(event({"error": "boom"}))) as server, client_of(server) as client:
            with pytest.raises(clientlib.ServerError, match="boom"):
                next(client.stream("x"))

    def test_json_where_a_stream_should_be(self) -> None:
        with streaming(reply({"choices": []})) as server, client_of(server) as client:
            with pytest.raises(clientlib.ProtocolError, match="not an event stream"):
                next(client.stream("x"))


def test_a_stream_has_one_reader_at_a_time() -> None:
    held = Held()
    with ScriptedServer(held) as server, client_of(server) as client:
        stream = client.stream("x")
        assert next(stream) == "Once"
        assert next(stream) == " upon"
        core = stream._core
        waiting = core.advance()
        next(waiting)  # it waits for the third piece
        with pytest.raises(RuntimeError, match="another thread"):
            next(stream)
        waiting.close()
        assert held.gone.wait(GUARD_S)
