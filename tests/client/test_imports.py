"""What importing clientlib brings along."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import clientlib

HEAVY = {
    "stretto",
    "torch",
    "trio",
    "asyncio",
    "anyio",
    "numpy",
    "httpx",
    "httpx2",
    "platformdirs",
    "pydantic",
    "ssl",
    "email",
    "tempfile",
}
OURS = Path(clientlib.__file__).parent


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter without site-packages hooks has after ``statement``, beyond its own."""
    program = (
        "import sys, json; before = set(sys.modules); "
        f"{statement}; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=dict(os.environ),
    )
    return set(json.loads(ran.stdout))


def test_only_the_standard_library_and_h11() -> None:
    loaded = loaded_by("import clientlib")
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"clientlib", "h11"}


def test_the_async_client_brings_anyio_and_no_event_loop() -> None:
    loaded = loaded_by("from clientlib import AsyncClient")
    assert "anyio" in loaded
    assert loaded & (HEAVY - {"anyio", "tempfile", "ssl"}) == set()


def test_no_module_names_the_daemon() -> None:
    """Not even in a function: clientlib lives in environments where the daemon is not installed."""
    for path in OURS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            roots = {name.partition(".")[0] for name in names}
            assert roots <= {"clientlib", "h11", "anyio", "__future__"} | set(sys.stdlib_module_names), path


def test_no_module_is_imported_in_a_circle() -> None:
    graph = {
        f"clientlib.{path.stem}": {
            node.module
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("clientlib.")
        }
        for path in OURS.glob("*.py")
        if path.stem != "__init__"
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_public_names_are_there() -> None:
    assert sorted(clientlib.__all__) == clientlib.__all__
    assert all(getattr(clientlib, name) is not None for name in clientlib.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        clientlib.no_such_name  # noqa: B018


def test_it_is_typed() -> None:
    assert (OURS / "py.typed").exists()
