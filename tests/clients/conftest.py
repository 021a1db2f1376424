"""A daemon for clients that other people wrote. They need packages of their own: `make clients` installs them apart and runs these tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from support.clients import CLIENTS_APART
from support.daemon import ECHO, RunningDaemon, running


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """They keep connections for the life of the process; that its end finds them open is no fault of ours."""
    if CLIENTS_APART:
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", pytest.PytestUnraisableExceptionWarning)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """The echo model says what the user said; it has an embedding model beside it."""
    with running(tmp_path_factory.mktemp("clients"), *ECHO, "--embedder", "minilm") as started:
        yield started
