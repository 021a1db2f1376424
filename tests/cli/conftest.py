"""Commands are tested away from the user's own files, variables and daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from support.cli_server import StandIn, stand_in

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("STRETTO_")]:
        monkeypatch.delenv(name)
    for name, folder in (("CONFIG", "config"), ("STATE", "state"), ("DATA", "data")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / folder))
    (tmp_path / "run" / "stretto").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture
def run() -> Run:
    """Run a command in this process; an exception that is not an exit fails the test."""
    from stretto.cli import main

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def daemon(own_place: Path) -> Iterator[StandIn]:
    """A stand-in for the daemon, where commands look for it."""
    with stand_in(own_place / "run" / "stretto" / "stretto.sock") as server:
        yield server
