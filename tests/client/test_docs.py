"""Every example of docs/clientlib.md runs, warnings being errors, and what the page says of defaults is so."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clientlib
from clientlib.timing import Timeouts
from support.clientlib_server import ScriptedServer, daemon

PAGE = (Path(__file__).parents[2] / "docs" / "clientlib.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

EXPECTED = [
    "What is the capital of France?\nTell me a story.",
    "Why is the sky blue? stop 10\nWhy is the sky blue?Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10, cached_tokens=4, reasoning_tokens=0)\n",
    "get_weather {'city': 'Paris'}\nRain, 12 degrees.\n",
    "A title for a text about rivers.\n",
    "",
    "Say hello.\nTell me a story.",
    "Tell me a story.",
    "Be patient.\n",
]


def execute(block: str, socket: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        env={**os.environ, "STRETTO_SOCKET": socket},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_every_block_has_its_expectation() -> None:
    assert len(BLOCKS) == len(EXPECTED)


@pytest.mark.parametrize(("block", "expected"), list(zip(BLOCKS, EXPECTED, strict=False)))
def test_examples(block: str, expected: str) -> None:
    with ScriptedServer(daemon) as server:
        assert execute(block, str(server.path)) == expected


def test_the_example_of_errors_without_a_daemon() -> None:
    (block,) = (block for block in BLOCKS if "DaemonNotRunning" in block)
    printed = execute(block, "/nowhere/stretto.sock")
    assert "/nowhere/stretto.sock" in printed
    assert "`stretto serve`" in printed


def test_arguments_and_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert list(rows) == list(inspect.signature(clientlib.Client).parameters)
    limits = Timeouts()
    assert rows["timeouts"] == f"{limits.connect_s:g} s, {limits.idle_s:g} s, {limits.total_s:g} s"
    assert rows["retries"] == str(inspect.signature(clientlib.Client).parameters["retries"].default)
    pool = inspect.signature(type(clientlib.Client("/a")._session.pool)).parameters
    assert (
        f"up to {pool['max_idle'].default} idle connections, each for {pool['max_idle_s'].default:g} s"
        in PAGE
    )


def test_every_error_is_named() -> None:
    errors = [
        name
        for name in clientlib.__all__
        if isinstance(kind := getattr(clientlib, name), type) and issubclass(kind, Exception)
    ]
    assert [name for name in errors if f"`{name}`" not in PAGE] == []
