"""Work ends when its client leaves, running or queued, and nobody else is harmed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from support.daemon import ECHO, RunningDaemon, running
from support.http1 import chat, connect, exchange_json, read_until, request_bytes

ENDLESS = ("--echo", "repeat=0,decode_delay_s=0.005,context_tokens=100000")


def engine_requests(daemon: RunningDaemon) -> list[dict[str, Any]]:
    status, body = exchange_json(daemon.socket, "GET", "/admin/requests")
    assert status == 200
    requests: list[dict[str, Any]] = body["data"]
    return requests


def idle_within(daemon: RunningDaemon, seconds: float) -> bool:
    """Whether neither the daemon nor its engine holds work within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _, status = exchange_json(daemon.socket, "GET", "/admin/status")
        if status["requests"] == 0 and status["engine"]["running"] == 0 and status["engine"]["queued"] == 0:
            return True
    return False


def test_closing_a_stream_after_three_tokens_frees_the_engine(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, *ENDLESS) as daemon:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
            received = b""
            while received.count(b'"content":"') < 4:  # the role's empty content, then three tokens
                received += sock.recv(4096)
        assert idle_within(daemon, 1.0)
        status, reply = exchange_json(daemon.port, "POST", "/v1/chat/completions", chat(max_tokens=4))
        assert status == 200
        assert reply["choices"][0]["finish_reason"] == "length"


def test_leaving_a_request_that_does_not_stream_frees_the_engine(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, *ENDLESS) as daemon:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat()))
            while not any(each["phase"] == "generating" for each in engine_requests(daemon)):
                pass
        assert idle_within(daemon, 1.0)


def test_cancelling_a_queued_request_leaves_the_running_one_whole(tmp_path: Path) -> None:
    slow = ("--echo", "decode_delay_s=0.01,context_tokens=4096", "--max-batch", "1")
    text = "to be or not to be, that is the question"
    with running(tmp_path, *ECHO, *slow) as daemon:
        with connect(daemon.port) as first, connect(daemon.port) as second:
            first.sendall(request_bytes("POST", "/v1/chat/completions", chat(text, stream=True)))
            received = read_until(first, b'"content":"t"')
            second.sendall(request_bytes("POST", "/v1/chat/completions", chat("other", stream=True)))
            while len(engine_requests(daemon)) < 2:
                pass
            second.close()
            while b"[DONE]" not in received:
                received += first.recv(65536)
        frames = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: {")]
        assert (
            "".join(json.loads(frame)["choices"][0]["delta"].get("content", "") for frame in frames) == text
        )
        assert idle_within(daemon, 1.0)


def test_an_administrator_cancels_one_request(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, *ENDLESS) as daemon:
        answers: list[tuple[int, Any]] = []
        caller = threading.Thread(
            target=lambda: answers.append(exchange_json(daemon.port, "POST", "/v1/chat/completions", chat()))
        )
        caller.start()
        while not (live := engine_requests(daemon)):
            pass
        assert exchange_json(daemon.socket, "DELETE", f"/admin/requests/{live[0]['id']}")[0] == 200
        caller.join(20)
        assert answers[0][0] == 499
        assert answers[0][1]["error"]["code"] == "request_cancelled"
        status, body = exchange_json(daemon.socket, "DELETE", f"/admin/requests/{live[0]['id']}")
        assert (status, body["error"]["code"]) == (404, "request_not_found")


def test_a_full_queue_refuses_with_retry_after(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, *ENDLESS, "--max-batch", "1", "--queue-limit", "1") as daemon:
        with contextlib.ExitStack() as open_sockets:
            for _ in range(2):
                sock = open_sockets.enter_context(connect(daemon.port))
                sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
                read_until(sock, b"\r\n\r\n")
            with connect(daemon.port) as third:
                third.sendall(request_bytes("POST", "/v1/chat/completions", chat()))
                reply = read_until(third, b"}}")
        assert b" 429 " in reply.split(b"\r\n", 1)[0]
        assert b"retry-after: " in reply.lower()
        assert b'"code":"queue_full"' in reply
        assert idle_within(daemon, 1.0)
