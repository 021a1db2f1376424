"""Other people's clients, which need packages of their own."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

CLIENTS_APART = "STRETTO_TEST_PYTHON" in os.environ
"""Whether `make clients` runs the tests, in an environment that has the clients and not the daemon."""


def client(name: str) -> Any:
    """The client's package. Where it is not installed, the whole module is skipped; not so where `make clients` has installed it."""
    if CLIENTS_APART:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason="`make clients` installs it", exc_type=ImportError)
