"""Session memory end to end: the daemon with --memory, the official client, clientlib, the commands, a restart, kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from click.testing import CliRunner, Result

import clientlib
from stretto.cli import main
from support.daemon import ECHO, RunningDaemon, daemon_command, daemon_environment, launch, running

FLAGS = (*ECHO, "--memory", "--memory-top-k", "2")
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("memory"), *FLAGS) as it:
        yield it


@pytest.fixture
def run(daemon: RunningDaemon) -> Run:
    def invoke(*arguments: str) -> Result:
        command = ("memory", "--socket", str(daemon.socket), *arguments)
        return CliRunner(env={"STRETTO_CONFIG": None}).invoke(main, command)

    return invoke


def ask(daemon: RunningDaemon, text: str, **headers: str) -> tuple[str, str | None]:
    """The answer of the official client, and what its head says of memory."""
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="echo", messages=[{"role": "user", "content": text}], extra_headers=headers
        )
    return raw.parse().choices[0].message.content or "", raw.headers.get("x-stretto-memory-recalled")


def test_turns_are_remembered_whatever_asks_for_them(daemon: RunningDaemon) -> None:
    session = {"X-Stretto-Session": "turns"}
    assert ask(daemon, "zebra one", **session) == ("zebra one", "0")
    with clientlib.Client(daemon.socket, session="turns") as client:
        with client.stream("zebra two") as pieces:
            assert "".join(pieces) == "zebra two"
        assert [entry["user"] for entry in client.admin.memory("turns")] == ["zebra one", "zebra two"]
    assert ask(daemon, "zebra three", **{"X-Fuuga-Session": "turns"}) == ("zebra three", "2")
    reply = httpx2.post(
        f"{daemon.url}/v1/messages",
        json={"model": "echo", "max_tokens": 50, "messages": [{"role": "user", "content": "zebra four"}]},
        headers={**session, "anthropic-version": "2023-06-01", "x-api-key": "x"},
    )
    assert (reply.status_code, reply.headers["x-stretto-memory-recalled"]) == (200, "2")
    listed = httpx2.get(f"{daemon.url}/v1/memory", headers=session).json()
    assert [(entry["user"], entry["assistant"]) for entry in listed["data"]] == [
        (f"zebra {number}", f"zebra {number}") for number in ("one", "two", "three", "four")
    ]


def test_modes(daemon: RunningDaemon) -> None:
    session = {"X-Stretto-Session": "modes"}
    ask(daemon, "zebra", **session)
    assert ask(daemon, "zebra read", **session, **{"X-Stretto-Memory": "read"})[1] == "1"
    assert ask(daemon, "zebra off", **session, **{"X-Stretto-Memory": "OFF"})[1] is None
    with pytest.raises(openai.BadRequestError) as caught:
        ask(daemon, "zebra typo", **session, **{"X-Stretto-Memory": "raed"})
    assert caught.value.code == "invalid_header"
    with clientlib.Client(daemon.socket) as client:
        assert [entry["user"] for entry in client.admin.memory("modes")] == ["zebra"]


def test_a_client_that_leaves_in_the_middle_is_not_remembered(tmp_path: Path) -> None:
    with running(tmp_path, "--memory", *ECHO, "--echo", "repeat=0,decode_delay_s=0.001") as daemon:
        with clientlib.Client(daemon.socket) as client:
            with client.stream("zebra", max_tokens=100_000 // 50) as pieces:
                next(pieces)
            while client.status()["requests"]:
                pass
            assert client.admin.memory() == []


def test_commands(run: Run) -> None:
    note = run("add", "Call me \x1b[31mAda", "--session", "cli").stdout.strip()
    assert note.startswith("mem_")
    other = json.loads(run("add", "x" * 100, "--session", "cli", "--json").stdout)
    lines = run("list", "--session", "cli").stdout.splitlines()
    assert lines[0].split() == ["ID", "KIND", "CREATED", "TEXT"]
    assert lines[1].split()[:2] == [note, "note"]
    assert lines[1].endswith("Call me \\x1b[31mAda")
    assert lines[2].endswith("x" * 59 + "…")
    assert json.loads(run("list", "--session", "cli", "--json").stdout)[1] == other
    rows = [line.split() for line in run("sessions").stdout.splitlines()]
    assert ["cli", "-", "2", "0"] in [row[:4] for row in rows]
    assert run("forget", note, "mem_0", "--session", "cli").exit_code == 1
    assert json.loads(run("forget", "--all", "--session", "cli", "--json").stdout) == {
        "session": "cli",
        "deleted": 1,
        "missing": [],
    }
    assert run("list", "--session", "cli").stdout.splitlines() == ["ID  KIND  CREATED  TEXT"]
    for wrong in (("forget",), ("forget", "--all", note), ("add",)):
        assert run(*wrong).exit_code == 2
    refused = run("add", "y" * 2001)
    assert refused.exit_code == 1
    assert "2000" in refused.stderr


def test_it_shows_in_the_status_and_the_log_has_no_word_of_it(daemon: RunningDaemon) -> None:
    ask(daemon, "xylophone")
    with clientlib.Client(daemon.socket) as client:
        status = client.status()
    assert status["memory"]["max_entries"] == 1000
    assert status["memory"]["recorded"] >= 1
    assert status["store"]["last_fault"] is None
    assert "xylophone" not in daemon.log
    assert "memory is on without an API key" in daemon.log


def test_it_survives_kill_9_and_db_finds_it_sound(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *FLAGS)
    try:
        for number in range(3):
            ask(daemon, f"zebra {number}")
        command = ("db", "--state-dir", str(tmp_path / "state"))
        live = CliRunner().invoke(main, [*command, "check", "--json"])
        assert json.loads(live.stdout)["rows"]["memory_entry"] == 3
        assert CliRunner().invoke(main, [*command, "vacuum"]).exit_code == 1
    finally:
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.communicate()
    with running(tmp_path, *FLAGS) as again:
        assert ask(again, "zebra again")[1] == "2"
    assert CliRunner().invoke(main, [*command, "vacuum"]).exit_code == 0
    report = json.loads(CliRunner().invoke(main, [*command, "check", "--json"]).stdout)
    assert (report["ok"], report["rows"]["memory_entry"]) == (True, 4)


def test_a_damaged_store_is_refused_at_the_start_and_without_memory_not_even_looked_at(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "stretto.db").write_text("this is no database")
    with pytest.raises(AssertionError, match=r"ended with 1 before it was ready[\s\S]*store_damaged"):
        launch(tmp_path, *FLAGS)
    assert (state / "stretto.db").read_text() == "this is no database"
    with running(tmp_path, *ECHO) as daemon:
        assert httpx2.get(f"{daemon.url}/v1/memory").json()["error"]["code"] == "memory_off"
        assert ask(daemon, "zebra") == ("zebra", None)


@pytest.mark.real_model
def test_what_was_said_in_other_words_is_recalled(tmp_path: Path, minilm_path: Path) -> None:
    flags = (*FLAGS, "--memory-recall", "hybrid", "--embedder", str(minilm_path))
    with running(tmp_path, *flags) as daemon:
        assert ask(daemon, "The vet says our dog needs its rabies shot in March.")[1] == "0"
        assert ask(daemon, "My printer puts out nothing but blank pages.")[1] == "0"
        assert ask(daemon, "When must the puppy be vaccinated?")[1] == "1"
        assert httpx2.get(f"{daemon.url}/v1/memory").status_code == 200
        with clientlib.Client(daemon.socket) as client:
            assert client.admin.status()["memory"]["recalls_by"] == "words and meaning"


def test_recall_by_meaning_needs_an_embedding_model(tmp_path: Path) -> None:
    command = daemon_command(*FLAGS, "--memory-recall", "hybrid", "--state-dir", str(tmp_path), "--port", "0")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=daemon_environment())
    assert ended.returncode == 1
    assert "stretto pull minilm" in ended.stderr
