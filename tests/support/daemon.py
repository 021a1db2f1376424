"""Runs the real daemon as a process of its own, for end-to-end tests."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_LIMIT_S = 240.0
STOP_LIMIT_S = 90.0


@dataclass
class RunningDaemon:
    """A daemon that has printed its ready line."""

    process: subprocess.Popen[bytes]
    ready_line: str
    url: str
    socket: Path
    log_path: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """Signal the daemon and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(STOP_LIMIT_S)


def daemon_command(*flags: str) -> list[str]:
    """Where the tests of other people's clients run, the daemon is installed elsewhere: ``STRETTO_TEST_PYTHON`` names its Python."""
    python = os.environ.get("STRETTO_TEST_PYTHON") or sys.executable
    return [python, "-m", "stretto", "serve", *flags]


def daemon_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without settings that would leak in from the outside."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    if "STRETTO_MODELS_DIR" in os.environ:
        env["STRETTO_MODELS_DIR"] = os.environ["STRETTO_MODELS_DIR"]
    env["PYTHONWARNINGS"] = "error::ResourceWarning"
    env.update(extra or {})
    return env


def launch(directory: Path, *flags: str, env: Mapping[str, str] | None = None) -> RunningDaemon:
    """Start a daemon in ``directory`` and wait for its ready line."""
    directory.mkdir(parents=True, exist_ok=True)
    socket = directory / "run" / "stretto.sock"
    log_path = directory / "stderr.log"
    command = daemon_command(
        "--port", "0", "--socket", str(socket), "--state-dir", str(directory / "state"), *flags
    )
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=daemon_environment(env)
        )
    try:
        line = _read_line(process, log_path)
        found = re.search(r"url=(http://\S+)", line)
        assert found, f"no url in the ready line {line!r}"
    except BaseException:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        raise
    return RunningDaemon(process, line, found[1], socket, log_path)


def _read_line(process: subprocess.Popen[bytes], log_path: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_LIMIT_S
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise AssertionError(f"not ready after {START_LIMIT_S} s; log:\n{log_path.read_text()}")
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise AssertionError(
                f"ended with {process.wait()} before it was ready; log:\n{log_path.read_text()}"
            )
        line += piece
    return line.decode()


@contextmanager
def running(
    directory: Path, *flags: str, env: Mapping[str, str] | None = None, exit_status: int = 0
) -> Iterator[RunningDaemon]:
    """A daemon for the length of a block; it must end by SIGTERM with that status (1 for one whose engine is stuck)."""
    daemon = launch(directory, *flags, env=env)
    try:
        yield daemon
        status = daemon.stop()
        assert status == exit_status, f"exit status {status}; log:\n{daemon.log}"
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
        if daemon.process.stdout is not None:
            daemon.process.stdout.close()


ECHO = ("--backend", "echo")
