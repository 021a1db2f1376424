"""``stretto chat``, piped and at a terminal."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from support.cli_server import LIMIT_S, StandIn
from support.cli_terminal import terminal

Run = Callable[..., Result]


def contents(daemon: StandIn, index: int = -1) -> list[str]:
    """What was said in a request, oldest first."""
    return [message["content"] for message in daemon.chats[index]["messages"]]


def test_piped_lines_are_questions_of_one_conversation(run: Run, daemon: StandIn) -> None:
    result = run("chat", "--temperature", "0", stdin="first one\nsecond\\\nline\n\nlast")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "first one\nsecond\nline\nlast\n", "")
    assert contents(daemon) == ["first one", "first one", "second\nline", "second\nline", "last"]
    assert [chat["temperature"] for chat in daemon.chats] == [0, 0, 0]


def test_commands_work_when_piped(run: Run, daemon: StandIn) -> None:
    result = run(
        "chat",
        "--system",
        "A",
        stdin="one\n/reset\ntwo\n/system B\nthree\n/system\n/nonsense\n/help\n/exit\nnever\n",
    )
    assert result.exit_code == 0
    assert result.stdout == "one\ntwo\nthree\n"
    assert [contents(daemon, index) for index in range(3)] == [["A", "one"], ["A", "two"], ["B", "three"]]
    assert "error: /nonsense is not known." in result.stderr
    assert "\nB\n" in result.stderr
    assert "/reset  " in result.stderr


def test_a_piped_chat_ends_at_the_first_error(run: Run, daemon: StandIn) -> None:
    result = run("chat", stdin="fine\nREFUSE\nnever\n")
    assert (result.exit_code, result.stdout) == (1, "fine\n")
    assert result.stderr == "error: Refused.\n       Ask better.\n"
    assert run("chat", stdin=b"\xff\n").exit_code == 2


def test_statistics_follow_each_answer(run: Run, daemon: StandIn) -> None:
    result = run("chat", "--stats", stdin="a\nb c\n")
    assert result.stdout == "a\nb c\n"
    assert [line.split(" · ")[2] for line in result.stderr.splitlines()] == ["1 tokens", "2 tokens"]


def environment() -> dict[str, str]:
    return dict(os.environ)


def test_at_a_terminal(daemon: StandIn, own_place: Path) -> None:
    with terminal(["chat"], environment()) as screen:
        screen.until("Talking to standin.")
        screen.until("> ")
        screen.type("hello there\r")
        screen.until("hello there\r\n")  # what was typed
        screen.until("hello there\r\n")  # the answer
        screen.until("> ")

        # Ctrl-C ends the answer: in the daemon too, and the chat goes on with what came of it.
        screen.type("part HOLD\r")
        assert daemon.holding.wait(LIMIT_S)
        screen.until("part HOLD\r\n")  # what was typed
        screen.until("part ")  # what came of the answer
        screen.type("\x03")
        screen.until("[cancelled]")
        assert daemon.cancelled.wait(LIMIT_S)
        screen.until("> ")
        screen.type("next\r")
        screen.until("next\r\n")
        screen.until("next\r\n")
        screen.until("> ")
        assert contents(daemon) == ["hello there", "hello there", "part HOLD", "part ", "next"]

        # At the prompt, Ctrl-C drops the line; so it does with the lines before it that wait to be continued.
        screen.type("dropped\\\r")
        screen.until(". ")
        screen.type("dropped too\x03")
        screen.until("\n> ")
        screen.type("/reset\r")
        screen.until("forgotten")
        screen.until("> ")
        screen.type("kept\r")
        screen.until("kept\r\n")
        screen.until("kept\r\n")
        screen.until("> ")
        assert contents(daemon) == ["kept"]

        # An error ends the answer and not the chat.
        screen.type("REFUSE\r")
        screen.until("error: Refused.")
        screen.until("> ")
        screen.type("part BREAK\r")
        screen.until("error: It broke.")
        screen.until("> ")
        screen.type("again\r")
        screen.until("again\r\n")
        screen.until("again\r\n")
        assert contents(daemon) == ["kept", "kept", "part BREAK", "part ", "again"]
        screen.until("> ")
        screen.type("\x04")
        assert screen.wait() == 0
        assert "Traceback" not in screen.seen

    history = own_place / "state" / "stretto" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "hello there" in history.read_text()

    # The next chat knows what was typed in this one: two lines up is /exit's neighbour.
    with terminal(["chat"], environment()) as screen:
        screen.until("> ")
        screen.type("\x1b[A\r")
        screen.until("again")
        screen.until("again\r\n")
        screen.until("> ")
        assert contents(daemon) == ["again"]
        screen.type("/exit\r")
        assert screen.wait() == 0


def test_what_the_model_says_cannot_steer_the_terminal(daemon: StandIn) -> None:
    with terminal(["generate", "a\x1b[2Jb\x07c"], environment()) as screen:
        assert screen.wait() == 0
        assert "a\\x1b[2Jb\\x07c" in screen.seen
        assert "\x1b[2J" not in screen.seen
