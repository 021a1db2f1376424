"""What a bad client does to a daemon, on raw sockets; and what a process holds, to see whether it leaks."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from support.http1 import chat, connect, read_until, request_bytes

CHAT = "/v1/chat/completions"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
STREAM = request_bytes("POST", CHAT, chat("hello world", stream=True))
WHOLE = request_bytes("POST", CHAT, chat("hello world"))
KEPT = request_bytes("POST", CHAT, chat("hi", stream=True, max_tokens=2), {"Connection": "keep-alive"})
UPLOAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
CHUNKED = UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIRST_TOKEN = b'"content":"h"'

Fault = Callable[[socket.socket], None]
"""Does its worst with a fresh connection; whoever called closes it."""


def reset(sock: socket.socket) -> None:
    """Close with a reset instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_to_end(sock: socket.socket) -> bytes:
    received = b""
    try:
        while piece := sock.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def status_of(received: bytes) -> int:
    assert received, "closed without a word"
    return int(received.split(b" ", 2)[1])


def refused(data: bytes, *statuses: int) -> Fault:
    """Send, and expect a proper refusal."""

    def fault(sock: socket.socket) -> None:
        sock.sendall(data)
        assert status_of(read_to_end(sock)) in statuses

    return fault


def sent_then_reset(data: bytes, wait_for: bytes = b"") -> Fault:
    def fault(sock: socket.socket) -> None:
        sock.sendall(data)
        if wait_for:
            read_until(sock, wait_for)
        reset(sock)

    return fault


def sent_then_closed(data: bytes, wait_for: bytes = b"") -> Fault:
    def fault(sock: socket.socket) -> None:
        sock.sendall(data)
        if wait_for:
            read_until(sock, wait_for)

    return fault


def upgrade_and_a_trailing_byte(sock: socket.socket) -> None:
    sock.sendall(request_bytes("GET", "/health", headers=UPGRADE) + b"\x81")
    read_until(sock, b"HTTP/1.1 200")


def half_closed_stream(sock: socket.socket) -> None:
    sock.sendall(STREAM)
    sock.shutdown(socket.SHUT_WR)
    read_to_end(sock)


def half_closed_body(sock: socket.socket) -> None:
    sock.sendall(STREAM[:-10])
    sock.shutdown(socket.SHUT_WR)
    assert status_of(read_to_end(sock)) == 400


def pipelined(sock: socket.socket) -> None:
    sock.sendall(KEPT * 3 + request_bytes("GET", "/health"))
    assert read_to_end(sock).count(b"HTTP/1.1 200") == 4


def body_over_the_limit_in_chunks(sock: socket.socket) -> None:
    sock.sendall(CHUNKED)
    try:
        while True:
            sock.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
    except OSError:
        return


def stalled_reader(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(
        request_bytes(
            "POST", CHAT, chat("x" * 500, stream=True, logprobs=True, top_logprobs=5, max_tokens=500)
        )
    )
    read_until(sock, b"\r\n\r\n")


FAULTS: dict[str, Fault] = {
    "upgrade to WebSocket and a trailing byte": upgrade_and_a_trailing_byte,
    "upgrade of a chat and a trailing byte": sent_then_reset(
        request_bytes("POST", CHAT, chat("hello", stream=True), UPGRADE) + b"\x81", FIRST_TOKEN
    ),
    "h2c": refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), 505),
    "garbage": refused(bytes(range(128, 256)) * 4 + b"\r\n\r\n", 400),
    "a connect and no more": sent_then_closed(b""),
    "a reset at once": sent_then_reset(b""),
    "a reset in the head": sent_then_reset(STREAM[:40]),
    "a reset in the body": sent_then_reset(STREAM[:-10]),
    "a reset after the request": sent_then_reset(STREAM),
    "a reset while the reply is made": sent_then_reset(WHOLE),
    "a reset in the stream": sent_then_reset(STREAM, FIRST_TOKEN),
    "a reset with requests waiting behind": sent_then_reset(KEPT * 5, b"data: "),
    "a close in the stream": sent_then_closed(STREAM, FIRST_TOKEN),
    "a close while the reply is made": sent_then_closed(WHOLE),
    "a half-closed stream": half_closed_stream,
    "a half-closed body": half_closed_body,
    "pipelining": pipelined,
    "a declared body over the limit": refused(UPLOAD + b"Content-Length: 999999999\r\n\r\n", 413),
    "a chunked body over the limit": body_over_the_limit_in_chunks,
    "a broken chunk": refused(CHUNKED + b"5\r\nhello\r\nzz\r\n", 400),
    "100-continue, then a reset": sent_then_reset(
        UPLOAD + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n", b"100"
    ),
    "a reader that stalls": stalled_reader,
}


def inflict(address: int | Path, fault: Fault) -> None:
    """Connect, do it, close."""
    with connect(address) as sock:
        fault(sock)


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def thread_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
