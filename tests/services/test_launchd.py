"""The launchd property list: as plistlib reads it, and its shell script as a shell runs it."""

from __future__ import annotations

import plistlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

PLIST = Path(__file__).resolve().parents[2] / "launchd" / "dev.stretto.daemon.plist"


@pytest.fixture
def job() -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(PLIST.read_bytes())
    return found


def test_round_trip(job: dict[str, Any]) -> None:
    assert plistlib.loads(plistlib.dumps(job)) == job


def test_keys_have_the_types_that_launchd_wants(job: dict[str, Any]) -> None:
    assert job["Label"] == PLIST.stem
    assert job["RunAtLoad"] is True
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["ThrottleInterval"] == 30
    assert job["ProcessType"] == "Standard"
    assert job["Umask"] == 0o077
    from stretto.settings import Settings

    assert job["ExitTimeOut"] > Settings().drain_grace_s + 10
    assert all(isinstance(word, str) for word in job["ProgramArguments"])
    assert job["ProgramArguments"][:2] == ["/bin/sh", "-c"]


@pytest.mark.parametrize(
    ("check", "serve", "status", "served"),
    [(0, 0, 0, True), (0, 1, 1, True), (2, 0, 0, False), (1, 7, 7, True)],
)
def test_a_wrong_setting_ends_the_job_with_success_and_all_else_is_passed_on(
    job: dict[str, Any], tmp_path: Path, check: int, serve: int, status: int, served: bool
) -> None:
    command = tmp_path / ".local" / "bin" / "stretto"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\necho "$@" >>"$HOME/calls"\necho "error: shown" >&2\ncase "$2" in --print-settings) exit {check};; esac\n'
        f'echo "pid $$" >>"$HOME/calls"\nexit {serve}\n'
    )
    command.chmod(0o755)
    process = subprocess.Popen(job["ProgramArguments"], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert process.wait(90) == status
    calls = (tmp_path / "calls").read_text().splitlines()
    # The daemon has the job's own process id: launchd's signals reach it.
    assert calls == ["serve --print-settings", *(["serve", f"pid {process.pid}"] if served else [])]
    assert "error: shown" in (tmp_path / "Library" / "Logs" / "stretto.log").read_text()
