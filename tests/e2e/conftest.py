"""Daemons for end-to-end tests: one with the echo backend, one with the real model, each for a whole module or session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemon import ECHO, RunningDaemon, running


@pytest.fixture(scope="module")
def echo_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("echo"), *ECHO) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def real_daemon(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("real"), "--model", "smollm2", "--dtype", "float32") as daemon:
        yield daemon
