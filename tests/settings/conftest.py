"""Settings are tested away from the user's own files and variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STRETTO_")]:
        monkeypatch.delenv(name)
    for name, folder in (("CONFIG", "config"), ("STATE", "state"), ("DATA", "data")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
