"""``stretto generate``: the answer and nothing else on stdout."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

from support.cli_server import LIMIT_S, StandIn

Run = Callable[..., Result]


def test_the_answer_is_all_there_is_on_stdout(run: Run, daemon: StandIn) -> None:
    result = run(
        "generate",
        "one two",
        "--system",
        "Be brief.",
        "--temperature",
        "0",
        "--max-tokens",
        "9",
        "--seed",
        "1",
        "--stop",
        "x",
    )
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two\n", "")
    (body,) = daemon.chats
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two"},
    ]
    assert {name: body[name] for name in ("temperature", "max_tokens", "seed", "stop", "stream")} == {
        "temperature": 0,
        "max_tokens": 9,
        "seed": 1,
        "stop": ["x"],
        "stream": True,
    }
    assert "top_p" not in body


@pytest.mark.parametrize(
    ("argument", "piped", "prompt"),
    [
        ("ask", None, "ask"),
        ("ask", "\n", "ask"),
        (None, "piped\n", "piped\n"),
        ("ask", "piped é", "ask\n\npiped é"),
    ],
)
def test_the_prompt_is_the_argument_then_what_is_piped(
    run: Run, daemon: StandIn, argument: str | None, piped: str | None, prompt: str
) -> None:
    assert run("generate", *([argument] if argument else []), stdin=piped).exit_code == 0
    assert daemon.chats[0]["messages"][-1]["content"] == prompt


@pytest.mark.parametrize("stdin", ["", " \n\t", b"\xff\xfe"])
def test_no_prompt_is_a_usage_error(run: Run, daemon: StandIn, stdin: str | bytes) -> None:
    result = run("generate", stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert daemon.chats == []


def test_statistics_go_to_stderr(run: Run, daemon: StandIn) -> None:
    result = run("generate", "one two", "--stats")
    assert result.stdout == "one two\n"
    assert result.stderr.startswith("[stop · 5 prompt tokens · 2 tokens · ")


def test_a_refusal_is_two_plain_lines(run: Run, daemon: StandIn) -> None:
    result = run("generate", "REFUSE")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        "error: Refused.\n       Ask better.\n",
    )


def test_an_answer_that_breaks_off_keeps_what_came_and_fails(run: Run, daemon: StandIn) -> None:
    result = run("generate", "part BREAK")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "part ", "error: It broke.\n")


def test_ctrl_c_cancels_in_the_daemon_too(daemon: StandIn) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "stretto", "generate", "word HOLD"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.read(5) == b"word "
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, out, err.strip()) == (130, b"", b"")
    assert daemon.cancelled.wait(LIMIT_S)
