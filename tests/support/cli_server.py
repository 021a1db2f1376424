"""A stand-in for the daemon at a Unix socket: enough HTTP for the commands, with every request kept for the test to look at."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

LIMIT_S = 90.0


class StandIn(socketserver.ThreadingUnixStreamServer):
    """Repeats the last message word by word. Words that mean something:

    ``HOLD``: after the first word the answer waits until the client has gone, and ``cancelled`` is set.
    ``BREAK``: after the first word comes an error. ``REFUSE``: the request is refused with 400.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chats: list[dict[str, Any]] = []
        self.stops: list[dict[str, Any]] = []
        self.pid: int | None = None  # what the status says of it
        self.holding = threading.Event()
        self.cancelled = threading.Event()
        super().__init__(str(path), Handler)

    def stop(self) -> None:
        """Nobody listens any more."""
        self.shutdown()
        self.server_close()
        self.path.unlink(missing_ok=True)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """The tests look at the requests, not at a log."""

    def address_string(self) -> str:
        return "unix"

    def do_GET(self) -> None:
        replies: dict[str, Any] = {
            "/v1/models": {
                "object": "list",
                "data": [{"id": "standin", "object": "model", "created": 1, "owned_by": "x"}],
            },
            "/health": {"status": "ok", "state": "ready"},
            "/admin/status": {
                "version": "0.1.0",
                "pid": self.server.pid,
                "ready": True,
                "uptime_s": 3725.2,
                "model": {"id": "standin", "aliases": ["a", "b"], "device": "cpu"},
                "engine": {"kv_bytes": 1_500_000_000, "steps": 12345, "kv": {"blocks": 7}},
            },
            "/admin/requests": {
                "requests": [
                    {
                        "id": "chatcmpl-1",
                        "phase": "generating",
                        "prompt_tokens": 12,
                        "completion_tokens": 3,
                        "max_tokens": None,
                        "age_s": 1.25,
                    }
                ]
            },
        }
        self.send_json(200, replies[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/admin/stop":
            self.server.stops.append(body)
            self.send_json(202, {"state": "draining"})
            if self.server.pid is None:
                threading.Thread(target=self.server.stop).start()
            return
        self.server.chats.append(body)
        text = body["messages"][-1]["content"]
        if "REFUSE" in text:
            error = {
                "message": "Refused.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "bad",
                "remedy": "Ask better.",
            }
            self.send_json(400, {"error": error})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        words = text.split(" ")
        for position, word in enumerate(words):
            self.send_chunk(delta={"content": word + (" " if position + 1 < len(words) else "")})
            if "HOLD" in text:
                self.server.holding.set()
                self.connection.settimeout(LIMIT_S)
                if self.gone():
                    self.server.cancelled.set()
                self.close_connection = True
                return
            if "BREAK" in text:
                error = {
                    "message": "It broke.",
                    "type": "server_error",
                    "param": None,
                    "code": "engine_error",
                }
                self.send_frame({"error": error})
                self.send_piece(b"")
                return
        self.send_chunk(delta={}, finish_reason="stop")
        usage = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
        self.send_chunk(choices=[], usage=usage)
        self.send_piece(b"data: [DONE]\n\n")
        self.send_piece(b"")

    def gone(self) -> bool:
        """Wait for the client; whether it has closed the connection (with data unread, that is a reset)."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def send_json(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_chunk(
        self,
        *,
        delta: dict[str, str] | None = None,
        finish_reason: str | None = None,
        choices: list[Any] | None = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        if choices is None:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "standin",
            "choices": choices,
        }
        self.send_frame(chunk | ({"usage": usage} if usage else {}))

    def send_frame(self, document: Any) -> None:
        self.send_piece(b"data: " + json.dumps(document).encode() + b"\n\n")

    def send_piece(self, data: bytes) -> None:
        """One chunk of the body; an empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@contextmanager
def stand_in(path: Path) -> Iterator[StandIn]:
    """A server on ``path`` for the block."""
    server = StandIn(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(LIMIT_S)
