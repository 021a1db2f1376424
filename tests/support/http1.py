"""The smallest HTTP/1.1 exchanges over a raw socket, for tests that need to see or break the wire."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

LIMIT_S = 60.0


def connect(address: int | Path) -> socket.socket:
    """Connect to a port on 127.0.0.1, or to a Unix socket."""
    if isinstance(address, Path):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(LIMIT_S)
        try:
            sock.connect(str(address))
        except OSError:
            sock.close()
            raise
        return sock
    return socket.create_connection(("127.0.0.1", address), timeout=LIMIT_S)


def request_bytes(method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """A whole request; ``body`` is sent as JSON."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if body is not None:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in lines.items()
    )
    return head.encode() + b"\r\n" + data


def exchange(
    address: int | Path, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send one request, read to the end of the connection: status, headers (lower-case names), body."""
    with connect(address) as sock:
        sock.sendall(request_bytes(method, target, body, headers))
        received = b""
        while piece := sock.recv(65536):
            received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode("latin-1").split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in header_lines)}
    if found.get("transfer-encoding") == "chunked":
        rest = dechunk(rest)
    return int(status_line.split()[1]), found, rest


def exchange_json(
    address: int | Path, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Like exchange, with the body parsed."""
    status, _, data = exchange(address, method, target, body, headers)
    return status, json.loads(data)


def dechunk(data: bytes) -> bytes:
    """Join the chunks of a chunked body; raises ValueError when its end is missing."""
    out = b""
    while True:
        size_text, _, data = data.partition(b"\r\n")
        size = int(size_text, 16)
        if size == 0:
            return out
        out, data = out + data[:size], data[size + 2 :]


def read_until(sock: socket.socket, marker: bytes) -> bytes:
    """Read until ``marker`` has come; looks at each byte once, or a stream could outrun it."""
    received = bytearray()
    seen = 0
    while received.find(marker, max(0, seen - len(marker))) < 0:
        seen = len(received)
        piece = sock.recv(65536)
        assert piece, f"closed before {marker!r}: {bytes(received)!r}"
        received += piece
    return bytes(received)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat request to the echo model."""
    return {"model": "echo", "messages": [{"role": "user", "content": text}], **fields}
