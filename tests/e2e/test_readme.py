"""The README's examples, run as they stand against the real model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.daemon import RunningDaemon

ROOT = Path(__file__).parents[2]
DEFAULT_URL = "http://127.0.0.1:8080"

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def block_with(language: str, marker: str) -> str:
    (found,) = [block for block in blocks(language) if marker in block]
    return found


def run(command: list[str], daemon: RunningDaemon, stdin: str | None = None) -> str:
    env = {**os.environ, "STRETTO_SOCKET": str(daemon.socket)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    ended = subprocess.run(
        command, env=env, input=stdin, capture_output=True, text=True, timeout=500, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_curl(real_daemon: RunningDaemon) -> None:
    script = block_with("sh", "curl -s").replace(DEFAULT_URL, real_daemon.url)
    reply = json.loads(run(["sh", "-c", script], real_daemon))
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_curl_on_the_unix_socket(real_daemon: RunningDaemon) -> None:
    script = block_with("sh", "curl -s").replace("curl -s", f"curl -s --unix-socket {real_daemon.socket}")
    reply = json.loads(run(["sh", "-c", script], real_daemon))
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_curl_streamed(real_daemon: RunningDaemon) -> None:
    script = block_with("sh", "curl -s").replace(DEFAULT_URL, real_daemon.url)
    script = script.replace('"temperature": 0', '"temperature": 0, "stream": true')
    frames = [
        line[6:] for line in run(["sh", "-c", script], real_daemon).splitlines() if line.startswith("data: ")
    ]
    assert frames[-1] == "[DONE]"
    text = "".join(json.loads(f)["choices"][0]["delta"].get("content", "") for f in frames[:-1])
    assert "Paris" in text


def test_clientlib(real_daemon: RunningDaemon) -> None:
    printed = run([sys.executable, "-c", block_with("python", "import clientlib")], real_daemon)
    first, _, second = printed.partition("\n")
    assert "Paris" in first
    assert len(second) > 20


def test_openai(real_daemon: RunningDaemon) -> None:
    source = block_with("python", "from openai").replace(DEFAULT_URL, real_daemon.url)
    assert "Paris" in run([sys.executable, "-c", source], real_daemon)


def test_chat_and_generate(real_daemon: RunningDaemon) -> None:
    chat, generate = block_with("sh", "stretto chat").replace(".venv/bin/stretto", "stretto").splitlines()
    assert "Paris" in run(["sh", "-c", generate], real_daemon)
    answer = run(
        ["sh", "-c", f"{chat} --temperature 0 --max-tokens 40"],
        real_daemon,
        "What is the capital of France?\n",
    )
    assert "Paris" in answer


def test_look_after_it(real_daemon: RunningDaemon) -> None:
    status, doctor, _stop = (
        block_with("sh", "stretto status").replace(".venv/bin/stretto", "stretto").splitlines()
    )
    assert "smollm2" in run(["sh", "-c", status], real_daemon)
    assert "torch" in run(["sh", "-c", doctor], real_daemon)
