"""Simon Willison's ``llm``, unmodified, as its documentation sets it up for other servers. The echo model says what the user said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clients import client
from support.daemon import RunningDaemon

client("llm")

# It imports for many seconds on a busy machine.
pytestmark = pytest.mark.timeout(400)

CALL = '<tool_call>\n{"name": "upper", "arguments": {"text": "abc"}}\n</tool_call>'
UPPER = 'def upper(text: str) -> str:\n    "In capitals."\n    return text.upper() + "!"\n'
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def llm(daemon: RunningDaemon, tmp_path: Path) -> Run:
    """Runs the command with a directory of its own."""
    # JSON is YAML.
    models = [
        {
            "model_id": name, "model_name": name, "api_base": f"{daemon.url}/v1", "api_key_name": "stretto",
            "supports_tools": True, "supports_schema": True, "can_stream": name != "whole",
        }
        for name in ("echo", "whole", "other")
    ]  # fmt: skip
    models[1]["model_name"] = "echo"
    tmp_path.joinpath("extra-openai-models.yaml").write_text(json.dumps(models))
    tmp_path.joinpath("keys.json").write_text(json.dumps({"stretto": "local"}))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments], env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, timeout=180, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("arguments", [["-m", "echo"], ["-m", "echo", "--no-stream"], ["-m", "whole"]])
def test_a_prompt(llm: Run, arguments: list[str]) -> None:
    ended = llm(*arguments, "Is it you?", "-s", "Be brief.", "-u")
    assert (ended.returncode, ended.stdout.strip()) == (0, "Is it you?")
    assert "Token usage" in ended.stderr


def test_a_tool(llm: Run) -> None:
    ended = llm("-m", "echo", "--functions", UPPER, "--td", f"I look.\n{CALL}")
    assert ended.returncode == 0, ended.stderr
    assert "<tool_response>\nABC!\n</tool_response>" in ended.stdout


def test_a_schema(llm: Run) -> None:
    ended = llm("-m", "echo", "--schema", "name, age int", '{"name": "Ada", "age": 36}')
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"name": "Ada", "age": 36}


def test_a_conversation_goes_on(llm: Run) -> None:
    assert llm("-m", "echo", "One.").returncode == 0
    assert llm("-c", "Two.").stdout.strip() == "Two."


def test_errors_reach_the_user(llm: Run) -> None:
    ended = llm("-m", "other", "Is it you?")
    assert ended.returncode == 1
    assert "other" in ended.stderr
