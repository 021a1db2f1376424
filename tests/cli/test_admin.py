"""``stretto status`` and ``stretto stop``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

from stretto.cli.status import value_text
from stretto.cli.stop import wait_until_gone, watch_process
from support.cli_server import LIMIT_S, StandIn

Run = Callable[..., Result]


def test_status_shows_everything_with_its_units(run: Run, daemon: StandIn) -> None:
    result = run("status")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:4] == ["version   0.1.0", "pid       -", "ready     yes", "uptime_s  1 h 2 min"]
    assert "  aliases  a, b" in lines
    assert "  kv_bytes  1.5 GB" in lines
    assert "  steps     12,345" in lines
    assert "    blocks  7" in lines
    assert lines[-2].split() == ["ID", "PHASE", "PRIORITY", "PROMPT", "COMPLETION", "MAX", "AGE"]
    assert lines[-1].split() == ["chatcmpl-1", "generating", "-", "12", "3", "-", "1.2", "s"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("pid", 19334, "19334"),
        ("kv_bytes_used", 1_500_000, "1.5 MB"),
        ("steps", 12345, "12,345"),
        ("bytes_per_token", 9, "9"),
    ],
)
def test_a_value_is_shown_by_the_unit_in_its_name(name: str, value: int, text: str) -> None:
    assert value_text(name, value) == text


def test_status_as_json(run: Run, daemon: StandIn) -> None:
    document = json.loads(run("status", "--json").stdout)
    assert document["status"]["engine"]["steps"] == 12345
    assert document["requests"][0]["id"] == "chatcmpl-1"


def test_stop_with_no_daemon_does_not_advise_to_start_one(run: Run) -> None:
    result = run("stop")
    assert result.exit_code == 1
    assert "Nothing to stop" in result.stderr
    assert "Start one" not in result.stderr


def test_stop_waits_until_the_daemon_has_gone(run: Run, daemon: StandIn) -> None:
    result = run("stop", "--grace", "2.5")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "stopped\n")
    assert daemon.stops == [{"grace_s": 2.5}]
    assert not daemon.path.exists()
    assert run("stop").exit_code == 1


def test_stop_waits_for_the_process_even_if_its_socket_lives_on(run: Run, daemon: StandIn) -> None:
    """As under a service manager that holds the socket. The process is a zombie when it has ended: nobody asks for its status."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    daemon.pid = child.pid
    try:
        with watch_process(child.pid) as process:
            assert process is not None
            assert not wait_until_gone(process, daemon.path, 0.01)
            assert child.stdin is not None
            child.stdin.close()
            assert run("stop").exit_code == 0
            assert wait_until_gone(process, daemon.path, 0)
    finally:
        child.kill()
        child.wait(LIMIT_S)
    assert daemon.path.exists()


def test_a_process_that_cannot_be_watched() -> None:
    for pid in (None, 0, -1, "7", 2**30):
        with watch_process(pid) as process:
            assert process is None


def test_stop_leaves_the_grace_to_the_daemon(run: Run, daemon: StandIn) -> None:
    assert run("stop").exit_code == 0
    assert daemon.stops == [{}]


def test_a_wrong_grace_is_refused(run: Run, daemon: StandIn) -> None:
    for bad in ("-1", "nan", "inf", "soon"):
        assert run("stop", "--grace", bad).exit_code == 2, bad
    assert daemon.stops == []
