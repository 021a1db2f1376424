"""Under a supervisor, or a careless shell: signals, the drain as seen from outside, standard streams, the watchdog."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.daemon import ECHO, STOP_LIMIT_S, daemon_command, daemon_environment, launch, running
from support.http1 import chat, connect, exchange, exchange_json, read_until, request_bytes

CHAT = "/v1/chat/completions"
ENDLESS = ("--echo", "repeat=0,decode_delay_s=0.01,context_tokens=100000")
LIMIT_S = 90.0


def test_while_a_stop_drains_both_doors_say_so(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *ECHO, *ENDLESS, "--drain-grace-s", "600")
    try:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", CHAT, chat(stream=True)))
            read_until(sock, b'"content":"h"')
            daemon.process.send_signal(signal.SIGTERM)
            while exchange_json(daemon.socket, "GET", "/admin/status")[1]["state"] != "draining":
                pass
            for door in (daemon.port, daemon.socket):
                code, headers, body = exchange(door, "POST", CHAT, chat("too late"))
                assert (code, int(headers["retry-after"]) >= 1) == (503, True)
                assert b'"code":"draining"' in body
                assert exchange_json(door, "GET", "/health/ready")[0] == 503
                assert exchange_json(door, "GET", "/health/live")[0] == 200
            read_until(sock, b'"content":"')  # it still runs
        # Its client has gone, so there is nothing left to wait for.
        assert daemon.process.wait(STOP_LIMIT_S) == 0
        assert not daemon.socket.exists()
    finally:
        daemon.process.kill()
        daemon.process.wait()
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="under nohup the daemon outlives its terminal"
)
def test_a_closed_terminal_drains_like_any_stop(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *ECHO)
    assert daemon.stop(signal.SIGHUP) == 0
    assert daemon.process.stdout is not None
    daemon.process.stdout.close()
    assert not daemon.socket.exists()
    assert "stopped status=0" in daemon.log


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no byte more."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


def answers(path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether a daemon comes to answer on the socket."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return exchange_json(path, "POST", CHAT, chat("hello"))[0] == 200
        except (FileNotFoundError, ConnectionRefusedError):
            continue
    return False


@pytest.mark.parametrize("streams", ["both full", "all closed"])
def test_standard_streams_that_nobody_serves_hold_nothing_up(tmp_path: Path, streams: str) -> None:
    path = tmp_path / "run" / "s.sock"
    command = daemon_command(
        "--port", "0", "--socket", str(path), "--state-dir", str(tmp_path / "state"), *ECHO
    )
    ends: tuple[int, ...] = ()
    if streams == "both full":
        ends = full_pipe()
        process = subprocess.Popen(command, stdout=ends[1], stderr=ends[1], env=daemon_environment())
    else:
        shell = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
        process = subprocess.Popen(shell, env=daemon_environment())
    try:
        assert answers(path, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        for end in ends:
            os.close(end)


@pytest.mark.skipif(sys.platform != "linux", reason="speaks the protocol of systemd")
def test_the_watchdog_is_fed_from_progress_alone(tmp_path: Path) -> None:
    """Fed while idle and while a stop drains, starved once a step has outlasted its deadline."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LIMIT_S)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        flags = ("--echo", "stall_at_step=3", "--step-deadline-s", "0.5", "--drain-grace-s", "1")
        with running(tmp_path, *ECHO, *flags, env=env, exit_status=1) as daemon:
            while not manager.recv(4096).startswith(b"READY=1"):
                pass
            assert manager.recv(4096) == b"WATCHDOG=1"
            with connect(daemon.port) as sock:
                sock.sendall(request_bytes("POST", CHAT, chat(stream=True)))
                while exchange_json(daemon.port, "GET", "/health/ready")[0] != 503:
                    pass
                assert exchange_json(daemon.port, "GET", "/health/live")[0] == 200
                while select.select([manager], [], [], 0)[0]:  # what was sent until then
                    assert manager.recv(4096) == b"WATCHDOG=1"
                daemon.process.send_signal(signal.SIGTERM)
                assert manager.recv(4096).startswith(b"STOPPING=1")
                assert manager.recv(4096).startswith(b"EXTEND_TIMEOUT_USEC=")
                assert daemon.process.wait(STOP_LIMIT_S) == 1  # the step never ends
