"""The worst clients at once, on both doors, while others are being served: the daemon lives, leaks nothing, and harms nobody."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.daemon import ECHO, RunningDaemon, running
from support.daemon_faults import (
    CHAT,
    FAULTS,
    inflict,
    open_descriptors,
    resident_bytes,
    thread_count,
)
from support.http1 import chat, connect, exchange, exchange_json, read_until, request_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts what a process holds in /proc")

ROUNDS = 5
SETTLE_LIMIT_S = 90.0
WORKER_THREADS = 4  # trio keeps idle ones for a while
BYSTANDERS = 2


def status(daemon: RunningDaemon) -> dict[str, Any]:
    code, body = exchange_json(daemon.socket, "GET", "/admin/status")
    assert code == 200
    found: dict[str, Any] = body
    return found


def settled(daemon: RunningDaemon, requests: int) -> dict[str, Any]:
    """The status once only so many requests and their connections are left."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while True:
        found = status(daemon)
        held = sum(door["open"] for door in found["connections"].values())
        engine = found["engine"]
        at_work = engine["running"] + engine["queued"]
        if (found["requests"], found["admission"]["inside"], at_work, held) == (
            requests,
            requests,
            requests,
            requests + 1,
        ):
            return found
        assert time.monotonic() < deadline, found


def test_hundreds_of_faults_leave_nothing_behind(tmp_path: Path) -> None:
    endless = "repeat=0,decode_delay_s=0.005,context_tokens=100000"
    flags = ("--echo", endless, "--max-body-mb", "1", "--write-timeout-s", "1", "--queue-limit", "100")
    with running(tmp_path, *ECHO, *flags) as daemon:
        pid = daemon.process.pid
        doors = (daemon.port, daemon.socket)
        streams = [connect(door) for door in doors]
        received = [b"" for _ in streams]
        ended = threading.Event()

        def follow(index: int) -> None:
            while not ended.is_set() and (piece := streams[index].recv(65536)):
                received[index] += piece

        for sock in streams:
            sock.sendall(request_bytes("POST", CHAT, chat("bystander ", stream=True)))
            read_until(sock, b"data: ")
        followers = [threading.Thread(target=follow, args=(index,)) for index in range(BYSTANDERS)]
        for follower in followers:
            follower.start()
        try:
            for fault in FAULTS.values():  # once, for what is made at first use
                inflict(daemon.port, fault)
            settled(daemon, BYSTANDERS)
            descriptors, threads, memory = open_descriptors(pid), thread_count(pid), resident_bytes(pid)
            for name, fault in FAULTS.items():
                for door in doors:
                    for _ in range(ROUNDS):
                        inflict(door, fault)
                assert daemon.process.poll() is None, name
            last = settled(daemon, BYSTANDERS)
            assert (
                open_descriptors(pid) <= descriptors + 1
            )  # the connection that asked for the status may still close
            assert thread_count(pid) <= threads + WORKER_THREADS
            assert resident_bytes(pid) - memory < 32e6
            assert all(door["failed_total"] == 0 for door in last["connections"].values())
        finally:
            ended.set()
            for follower in followers:
                follower.join(20)
            for sock in streams:
                sock.close()
        for text in received:
            assert b'"error"' not in text
            assert text.count(b'"content":"b"') > 1
        settled(daemon, 0)
        assert exchange_json(daemon.port, "POST", CHAT, chat("alive", max_tokens=5))[0] == 200
        assert "Traceback" not in daemon.log


def test_a_burst_over_the_queue_limit_is_answered_and_forgotten(tmp_path: Path) -> None:
    outcomes: list[tuple[int, bool]] = []

    def ask(daemon: RunningDaemon, number: int) -> None:
        door = daemon.port if number % 2 else daemon.socket
        code, headers, body = exchange(door, "POST", CHAT, chat(f"number {number}"))
        whole = (
            code == 200 and json.loads(body)["choices"][0]["message"]["content"] == f"number {number}"
        ) or (code == 429 and int(headers["retry-after"]) >= 1 and b'"queue_full"' in body)
        outcomes.append((code, whole))

    with running(tmp_path, *ECHO, "--echo", "decode_delay_s=0.002", "--max-batch", "4") as daemon:
        callers = [threading.Thread(target=ask, args=(daemon, number)) for number in range(60)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert len(outcomes) == 60
        assert all(whole for _, whole in outcomes)
        assert {code for code, _ in outcomes} <= {200, 429}
        settled(daemon, 0)
