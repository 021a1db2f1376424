"""The systemd units, judged by systemd's own checker."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = sorted((ROOT / "systemd").glob("*.*"))
USER = sorted((ROOT / "systemd" / "user").glob("*.*"))


def verify(units: list[Path], scratch: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze verify. It exits 0 for unknown keys and only prints them, so output counts as failure too."""
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is missing: install the package systemd"
    scratch.chmod(0o700)
    env = {"PATH": os.environ["PATH"], "HOME": str(scratch), "XDG_RUNTIME_DIR": str(scratch)}
    return subprocess.run(
        [tool, *flags, "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
    )


def read(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize(("units", "flags"), [(SYSTEM, ()), (USER, ("--user",))], ids=["system", "user"])
def test_units_are_accepted_without_a_word(units: list[Path], flags: tuple[str, ...], tmp_path: Path) -> None:
    assert [path.name for path in units] == [
        "stretto-control.socket",
        "stretto-http.socket",
        "stretto.service",
    ]
    done = verify(units, tmp_path, *flags)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_checker_would_notice(tmp_path: Path) -> None:
    """The check above can fail: an unknown key, a bad value and a missing command are all noticed."""
    text = (ROOT / "systemd" / "stretto.service").read_text(encoding="utf-8")
    for old, new in (
        ("WatchdogSec=60", "WatchdogSecs=60"),
        ("TimeoutStopSec=60", "TimeoutStopSec=soon"),
        ("/usr/bin/env", "/nowhere/env"),
    ):
        assert old in text
        unit = tmp_path / "stretto.service"
        unit.write_text(text.replace(old, new), encoding="utf-8")
        done = verify([unit], tmp_path)
        assert done.stderr or done.returncode, new


def test_exposure_is_as_documented() -> None:
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--no-pager",
            str(ROOT / "systemd" / "stretto.service"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    rating = float(last.split(":")[1].split()[0])
    assert rating <= 2.5, last
    assert f"rates it {rating}" in (ROOT / "docs" / "services.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", [ROOT / "systemd" / "stretto.service", ROOT / "systemd" / "user" / "stretto.service"], ids=str
)
def test_the_service_keeps_the_daemons_contract(path: Path) -> None:
    unit = read(path)
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"
    assert service["ExecStart"] == "/usr/bin/env stretto serve"
    assert service["Restart"] == "on-failure"
    # A wrong setting is final, and so is a missing command.
    assert service["RestartPreventExitStatus"].split() == ["2", "127"]
    assert float(unit["Unit"]["StartLimitBurst"]) >= 1
    assert float(unit["Unit"]["StartLimitIntervalSec"]) > float(service["RestartSec"]) * float(
        unit["Unit"]["StartLimitBurst"]
    )
    from stretto.settings import Settings

    assert float(service["TimeoutStopSec"]) > Settings().drain_grace_s + 10
    assert service["KillMode"] == "mixed"
    assert service["UMask"] == "0077"


def test_the_system_service_sets_settings_that_exist() -> None:
    text = (ROOT / "systemd" / "stretto.service").read_text(encoding="utf-8")
    words = [
        word
        for line in text.splitlines()
        if line.startswith("Environment=")
        for word in line.partition("=")[2].split()
    ]
    settings = {
        name: value
        for name, _, value in (word.partition("=") for word in words)
        if name.startswith("STRETTO_")
    }
    from stretto.settings import load_settings

    assert set(settings) == {"STRETTO_SOCKET", "STRETTO_STATE_DIR", "STRETTO_MODELS_DIR"}
    load_settings(
        environ={
            name: value.replace("%t", "/run").replace("%S", "/var/lib") for name, value in settings.items()
        }
    )


@pytest.mark.parametrize("folder", ["systemd", "systemd/user"])
def test_sockets_have_the_names_that_the_daemon_knows(folder: str) -> None:
    http, control = (read(ROOT / folder / f"stretto-{name}.socket")["Socket"] for name in ("http", "control"))
    assert (http["FileDescriptorName"], control["FileDescriptorName"]) == ("http", "control")
    assert http["ListenStream"] == "127.0.0.1:8080"
    assert control["SocketMode"] == "0600"
    for unit in (http, control):
        assert unit["Service"] == "stretto.service"
        assert unit.get("Accept") is None


def test_the_users_control_socket_is_where_clients_look(monkeypatch: pytest.MonkeyPatch) -> None:
    from stretto.settings import default_socket

    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    listen = read(ROOT / "systemd" / "user" / "stretto-control.socket")["Socket"]["ListenStream"]
    assert listen.replace("%t", "/run/user/1000") == str(default_socket())
