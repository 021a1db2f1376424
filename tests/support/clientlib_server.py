"""An HTTP server that does exactly what a test scripts, byte for byte, faults included. It shares no code with clientlib."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

GUARD_S = 20.0
"""No wait of the server lasts longer: a client that hangs fails its test instead of stopping the run."""


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One connection, seen from the server."""

    def __init__(self, sock: socket.socket, server: ScriptedServer) -> None:
        sock.settimeout(GUARD_S)
        self.sock = sock
        self.server = server
        self._buffer = b""

    def request(self) -> Received | None:
        """The next request, read to its end; None when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        assert version == "HTTP/1.1"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            assert self._more(), "the client closed in the middle of a request"
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        received = Received(method, target, headers, body)
        self.server.note(received)
        return received

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def wait_closed(self) -> None:
        """Return when the client has closed; its silence beyond GUARD_S is a failure."""
        while self._more():
            pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)


Script = Callable[[Peer], None]


class ScriptedServer:
    """Runs ``script`` in a thread for every connection. Use as a context manager; a script's exception fails the test."""

    def __init__(
        self, script: Script, *, tcp: bool = False, backlog: int = 64, accepting: bool = True
    ) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.connections = 0
        self._tcp = tcp
        self._backlog = backlog
        self._accepting = accepting
        self._acceptor: threading.Thread | None = None
        self._lock = threading.Lock()
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        # Short: a socket's path may have 103 bytes on macOS, and pytest's directories are long.
        self._directory = tempfile.mkdtemp(prefix="cl-")
        self.path = Path(self._directory) / "s"

    def note(self, received: Received) -> None:
        with self._lock:
            self.requests.append(received)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        if self._tcp:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=self._backlog)
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(os.fspath(self.path))
            self._listener.listen(self._backlog)
        if self._accepting:
            self.start_accepting()
        return self

    def start_accepting(self) -> None:
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def accept_one(self) -> None:
        """Take a connection out of the backlog and do nothing with it."""
        self._peers.append(Peer(self._listener.accept()[0], self))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._acceptor is not None:
            self._acceptor.join(GUARD_S)
        with self._lock:
            peers, threads = list(self._peers), list(self._threads)
        for peer in peers:
            peer.close()
        for thread in threads:
            thread.join(GUARD_S)
            assert not thread.is_alive(), "a script did not end"
        shutil.rmtree(self._directory)
        if self._failures:
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(sock, self)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            with self._lock:
                self.connections += 1
                self._peers.append(peer)
                self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            self.script(peer)
        except ConnectionError:
            pass  # the client went away while the script was writing, which some tests have it do
        except OSError as error:
            if peer.sock.fileno() != -1:  # else: the test is over
                self._failures.append(error)
        except BaseException as error:
            self._failures.append(error)
        finally:
            peer.close()


def reply(
    body: object, *, status: str = "200 OK", headers: Mapping[str, str] | None = None, close: bool = False
) -> bytes:
    """A whole reply with a length; ``body`` is JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(data)}"]
    lines += ["x-request-id: req-1", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    lines += ["connection: close"] if close else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-request-id: chatcmpl-0123\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: object, *, ascii_only: bool = True) -> bytes:
    """An event with a JSON document, or a text, as its data."""
    data = document if isinstance(document, str) else json.dumps(document, ensure_ascii=ascii_only)
    return f"data: {data}\n\n".encode()


def delta_event(
    text: str | None = None, *, finish: str | None = None, index: int = 0, **delta: object
) -> bytes:
    """One ``chat.completion.chunk``."""
    if text is not None:
        delta["content"] = text
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
    return event(
        {
            "id": "chatcmpl-0123",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "tiny",
            "choices": [choice],
            "usage": None,
        }
    )


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def usage_event() -> bytes:
    """The chunk that carries usage."""
    head = {
        "id": "chatcmpl-0123",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "tiny",
    }
    return event({**head, "choices": [], "usage": USAGE})


def answer_events(pieces: Iterable[str]) -> list[bytes]:
    """The events of a whole streamed answer."""
    return [
        delta_event(role="assistant", content=""),
        *(delta_event(piece) for piece in pieces),
        delta_event(finish="stop"),
        usage_event(),
        event("[DONE]"),
    ]


def completion(text: str, *, finish: str = "stop", model: str = "tiny", **more: object) -> dict[str, Any]:
    """A whole ``chat.completion``."""
    return {
        "id": "chatcmpl-0123",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        "usage": USAGE,
        **more,
    }


def calling(name: str, arguments: str) -> dict[str, Any]:
    """A whole ``chat.completion`` that calls a function."""
    document = completion("", finish="tool_calls")
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    document["choices"][0]["message"].update(content=None, tool_calls=[call])
    return document


def error(code: str, *, kind: str = "invalid_request_error", **more: object) -> dict[str, Any]:
    """An error envelope."""
    return {"error": {"message": f"It is {code}.", "type": kind, "param": None, "code": code, **more}}


def collect(pieces: Iterable[str], seen: list[str]) -> None:
    """Append what comes, one by one, so that it is there when the next raises."""
    for piece in pieces:
        seen.append(piece)


MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 5, "owned_by": "stretto"}]}


def daemon(peer: Peer) -> None:
    """A well-behaved daemon: it echoes the last message, whole or word by word, and has a control plane."""
    while (request := peer.request()) is not None:
        for piece in _daemon_reply(request):
            peer.send(piece)


def _daemon_reply(request: Received) -> Iterator[bytes]:
    match request.method, request.target:
        case "GET", "/v1/models":
            yield reply(MODELS)
        case "GET", "/health":
            yield reply({"state": "ready", "model": "tiny"})
        case "POST", "/v1/chat/completions":
            text = request.json["messages"][-1]["content"]
            if request.json.get("tool_choice") == "required":
                yield reply(calling(request.json["tools"][0]["function"]["name"], '{"city": "Paris"}'))
                return
            if not request.json.get("stream"):
                yield reply(completion(text))
                return
            words = text.split(" ")
            yield STREAM_HEAD
            for piece in answer_events([words[0], *(f" {word}" for word in words[1:])]):
                yield chunk(piece)
            yield STREAM_END
        case "GET", "/admin/status":
            yield reply({"state": "ready", "running": 0})
        case "GET", "/admin/requests":
            yield reply({"requests": [{"id": "chatcmpl-9", "phase": "generating"}]})
        case "DELETE", "/admin/requests/chatcmpl-9":
            yield reply({"cancelled": True})
        case "DELETE", _:
            yield reply(error("request_not_found"), status="404 Not Found")
        case "POST", "/admin/drain":
            yield reply({"state": "draining"}, status="202 Accepted")
        case "POST", "/admin/stop":
            yield reply(b"", status="202 Accepted", close=True)
        case _:
            yield reply(error("not_found"), status="404 Not Found")
