"""Start, stop, crash, start again: by the book and against it."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from support.daemon import ECHO, RunningDaemon, daemon_command, daemon_environment, launch, running
from support.http1 import chat, connect, exchange, exchange_json, read_until, request_bytes


def run_to_end(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        daemon_command(*flags),
        capture_output=True,
        text=True,
        timeout=60,
        env=daemon_environment(),
        check=False,
    )


def test_the_ready_line_says_where_and_what(echo_daemon: RunningDaemon) -> None:
    line = echo_daemon.ready_line
    for part in (
        "url=http://127.0.0.1:",
        f"socket={echo_daemon.socket}",
        "model=echo",
        "context=",
        "backend=echo",
        "device=",
        "kv=",
    ):
        assert part in line


def test_the_socket_is_private(echo_daemon: RunningDaemon) -> None:
    assert stat.S_IMODE(echo_daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(echo_daemon.socket.parent.stat().st_mode) == 0o700


def test_both_doors_serve(echo_daemon: RunningDaemon) -> None:
    for door in (echo_daemon.port, echo_daemon.socket):
        status, reply = exchange_json(door, "POST", "/v1/chat/completions", chat("hi"))
        assert status == 200
        assert reply["choices"][0]["message"]["content"] == "hi"


def test_admin_is_not_on_tcp(echo_daemon: RunningDaemon) -> None:
    assert exchange_json(echo_daemon.port, "GET", "/admin/status")[0] == 404
    assert exchange_json(echo_daemon.socket, "GET", "/admin/status")[0] == 200


def test_a_clean_stop_leaves_nothing(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *ECHO)
    assert daemon.stop() == 0
    assert daemon.process.stdout is not None
    daemon.process.stdout.close()
    assert not daemon.socket.exists()
    assert "ResourceWarning" not in daemon.log
    assert "Traceback" not in daemon.log


def test_kill_9_then_start_again(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *ECHO)
    daemon.stop(signal.SIGKILL)
    assert daemon.process.stdout is not None
    daemon.process.stdout.close()
    assert daemon.socket.exists()
    with running(tmp_path, *ECHO) as second:
        assert exchange_json(second.socket, "POST", "/v1/chat/completions", chat("again"))[0] == 200


@pytest.mark.parametrize("shared", ["state", "socket"])
def test_a_second_daemon_refuses(tmp_path: Path, echo_daemon: RunningDaemon, shared: str) -> None:
    state = echo_daemon.socket.parent.parent / "state" if shared == "state" else tmp_path / "state"
    path = echo_daemon.socket if shared == "socket" else tmp_path / "run" / "stretto.sock"
    second = run_to_end("--port", "0", "--socket", str(path), "--state-dir", str(state), *ECHO)
    assert second.returncode == 1
    assert second.stdout == ""
    assert str(echo_daemon.process.pid) in second.stderr
    assert "Traceback" not in second.stderr
    assert exchange_json(echo_daemon.socket, "POST", "/v1/chat/completions", chat("still here"))[0] == 200


def test_a_port_in_use_is_one_line_and_status_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_to_end(
            "--port",
            port,
            "--socket",
            str(tmp_path / "s" / "s.sock"),
            "--state-dir",
            str(tmp_path / "d"),
            *ECHO,
        )
    assert ended.returncode == 1
    assert port in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--port", "70000"), "port"),
        (("--max-batch", "0"), "max"),
        (("--backend", "abacus"), "backend"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_bad_arguments_are_status_2(flags: tuple[str, ...], named: str) -> None:
    ended = run_to_end(*flags)
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_missing_model_is_status_1_and_says_how_to_get_it(tmp_path: Path) -> None:
    ended = run_to_end(
        "--port", "0", "--socket", str(tmp_path / "r" / "s.sock"), "--state-dir", str(tmp_path / "d"),
        "--models-dir", str(tmp_path / "none"), "--model", "smollm2",
    )  # fmt: skip
    assert ended.returncode == 1
    assert "stretto pull smollm2" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_signal_during_load_stops_the_load(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            daemon_command(
                "--port", "0", "--socket", str(tmp_path / "r" / "s.sock"), "--state-dir", str(tmp_path / "d"),
                *ECHO, "--echo", "load_delay_s=20",
            ),
            stdout=subprocess.PIPE, stderr=log, env=daemon_environment(),
        )  # fmt: skip
    deadline = time.monotonic() + 30
    while b"loading" not in log_path.read_bytes():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output == b""
    assert b"Traceback" not in log_path.read_bytes()


def test_drain_refuses_new_work_and_finishes_the_old(tmp_path: Path) -> None:
    text = "all of these words are to arrive"
    with running(tmp_path, *ECHO, "--echo", "decode_delay_s=0.01") as daemon:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(text, stream=True)))
            received = read_until(sock, b'"content":"a"')
            assert exchange_json(daemon.socket, "POST", "/admin/drain", {})[0] in (200, 202)
            status, headers, body = exchange(daemon.port, "POST", "/v1/chat/completions", chat("no"))
            assert status == 503
            assert b'"code":"draining"' in body
            assert int(headers["retry-after"]) >= 1
            assert exchange_json(daemon.port, "GET", "/health/ready")[0] == 503
            assert exchange_json(daemon.port, "GET", "/health/live")[0] == 200
            while b"[DONE]" not in received:
                received += sock.recv(65536)
        assert received.count(b'"finish_reason":"stop"') == 1


def test_sigterm_gives_streams_their_grace_then_an_error_event(tmp_path: Path) -> None:
    daemon = launch(
        tmp_path,
        *ECHO,
        "--echo",
        "repeat=0,decode_delay_s=0.01,context_tokens=100000",
        "--drain-grace-s",
        "1",
    )
    try:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
            received = read_until(sock, b'"content":"h"')
            assert daemon.stop() == 0
            while piece := sock.recv(65536):
                received += piece
        assert b'"error":{' in received
        assert received.rstrip().endswith(b"0")  # the last chunk: the body is whole
    finally:
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    daemon = launch(
        tmp_path,
        *ECHO,
        "--echo",
        "repeat=0,decode_delay_s=0.01,context_tokens=100000",
        "--drain-grace-s",
        "600",
    )
    try:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
            read_until(sock, b'"content":"h"')
            daemon.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 20
            while "draining" not in daemon.log:
                assert time.monotonic() < deadline
            daemon.stop()
        assert daemon.process.returncode in (0, 1)
    finally:
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()


def test_a_reader_that_stalls_does_not_hold_the_stop(tmp_path: Path) -> None:
    daemon = launch(
        tmp_path,
        *ECHO,
        "--echo",
        "repeat=0,context_tokens=1000000",
        "--drain-grace-s",
        "1",
        "--write-timeout-s",
        "1",
    )
    try:
        with connect(daemon.port) as sock:
            sock.sendall(
                request_bytes("POST", "/v1/chat/completions", chat("x" * 2000, stream=True, logprobs=True))
            )
            read_until(sock, b"data: ")
            assert daemon.stop() == 0
    finally:
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()


def test_ready_tells_the_truth_about_a_stalled_engine(tmp_path: Path) -> None:
    with running(
        tmp_path,
        *ECHO,
        "--echo",
        "stall_at_step=1",
        "--step-deadline-s",
        "0.2",
        "--stall-target-ms",
        "100",
        "--drain-grace-s",
        "0",
        exit_status=1,
    ) as daemon:
        assert exchange_json(daemon.port, "GET", "/health/ready")[0] == 200
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
            deadline = time.monotonic() + 10
            while (answer := exchange_json(daemon.port, "GET", "/health/ready"))[0] != 503:
                assert time.monotonic() < deadline
            assert answer[1]["status"] == "stalled"
            assert exchange_json(daemon.port, "GET", "/v1/models")[0] == 200


def test_a_failing_step_ends_only_its_own(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, "--echo", "fail_at_step=1") as daemon:
        status, body = exchange_json(daemon.port, "POST", "/v1/chat/completions", chat("one"))
        assert (status, body["error"]["code"], body["error"]["type"]) == (500, "engine_error", "server_error")
        status, body = exchange_json(daemon.port, "POST", "/v1/chat/completions", chat("two"))
        assert status == 200
        assert body["choices"][0]["message"]["content"] == "two"


def test_an_api_key_guards_v1_on_tcp_only(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, "--api-key", "open-sesame") as daemon:
        assert exchange_json(daemon.port, "GET", "/health")[0] == 200
        for headers in (None, {"Authorization": "Bearer wrong"}):
            status, body = exchange_json(daemon.port, "GET", "/v1/models", headers=headers)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        key = {"Authorization": "Bearer open-sesame"}
        assert exchange_json(daemon.port, "GET", "/v1/models", headers=key)[0] == 200
        assert exchange_json(daemon.socket, "GET", "/v1/models")[0] == 200
        assert "open-sesame" not in daemon.log


def test_a_foreign_host_is_refused_on_every_route(echo_daemon: RunningDaemon) -> None:
    for target in ("/health", "/health/live", "/v1/models", "/nowhere"):
        status, body = exchange_json(echo_daemon.port, "GET", target, headers={"Host": "evil.example"})
        assert (status, body["error"]["code"]) == (403, "host_not_allowed")


def test_pings_come_while_nothing_else_does(tmp_path: Path) -> None:
    with running(
        tmp_path,
        *ECHO,
        "--echo",
        "stall_at_step=1",
        "--ping-interval-s",
        "0.1",
        "--drain-grace-s",
        "0",
        exit_status=1,
    ) as daemon:
        with connect(daemon.port) as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", chat(stream=True)))
            received = b""
            while received.count(b": ping") < 3:
                received += sock.recv(4096)
