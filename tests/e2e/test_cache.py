"""The answer cache end to end: every dialect, the commands, clientlib, a restart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from click.testing import CliRunner, Result

import clientlib
from stretto.cli import main
from support.daemon import ECHO, RunningDaemon, daemon_command, daemon_environment, launch, running
from support.embedding_tiny import tiny_embedder

CLOSE = "How do I close my account?"
CLOSE_TOO = "How could I close my account?"
OPEN = "How do I open my account?"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_embedder(tmp_path_factory.mktemp("tiny") / "model")


def flags(embedder: Path, *more: str) -> tuple[str, ...]:
    # The tiny model's vectors are random: what is the same is left to the gate.
    return (*ECHO, "--semantic-cache", "on", "--embedder", str(embedder), "--cache-threshold", "0", *more)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, embedder: Path) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("cache"), *flags(embedder)) as it:
        yield it


@pytest.fixture
def run(daemon: RunningDaemon) -> Run:
    def invoke(*arguments: str) -> Result:
        command = ("cache", "--socket", str(daemon.socket), *arguments)
        return CliRunner(env={"STRETTO_CONFIG": None}).invoke(main, command)

    return invoke


def post(daemon: RunningDaemon, path: str, body: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{daemon.url}{path}", json={"model": "echo", **body}, headers=headers)


def chat(daemon: RunningDaemon, text: str, *, stream: bool = False, **headers: str) -> httpx2.Response:
    return post(
        daemon,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": text}], "stream": stream},
        **headers,
    )


def test_the_same_question_in_every_dialect(daemon: RunningDaemon) -> None:
    assert chat(daemon, CLOSE).headers["x-stretto-cache-result"] == "miss"
    replies = [
        (chat(daemon, CLOSE), "exact"),
        (chat(daemon, CLOSE_TOO), "semantic"),
        (
            post(
                daemon,
                "/v1/messages",
                {"max_tokens": 99, "messages": [{"role": "user", "content": CLOSE_TOO}]},
            ),
            "semantic",
        ),
        (post(daemon, "/v1/responses", {"input": CLOSE}), "exact"),
    ]
    for reply, match in replies:
        assert reply.status_code == 200
        assert reply.headers["x-stretto-cache-result"] == "hit"
        assert reply.headers["x-stretto-cache-match"] == match
        assert CLOSE in reply.text
    of_chat, _, of_messages, _ = (reply.json() for reply, _ in replies)
    assert of_chat["usage"]["completion_tokens"] == of_messages["usage"]["output_tokens"]
    assert chat(daemon, OPEN).headers["x-stretto-cache-result"] == "miss"


def test_a_streamed_hit_is_one_chunk_of_text(daemon: RunningDaemon) -> None:
    chat(daemon, CLOSE)
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="echo",
            messages=[{"role": "user", "content": CLOSE_TOO}],
            stream=True,
            stream_options={"include_usage": True},
        )
        assert raw.headers["x-stretto-cache-result"] == "hit"
        chunks = list(raw.parse())
    texts = [
        chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content
    ]
    assert texts == [CLOSE]
    assert chunks[-1].usage is not None
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    with clientlib.Client(daemon.socket) as local, local.stream(CLOSE_TOO) as pieces:
        assert list(pieces) == [CLOSE]


def test_the_callers_word_counts(daemon: RunningDaemon) -> None:
    chat(daemon, CLOSE)
    results = [
        chat(daemon, CLOSE, **{name: value}).headers["x-stretto-cache-result"]
        for name, value in (
            ("X-Stretto-Cache", "off"), ("X-Fuuga-Cache", "off"), ("X-Stretto-Cache", "refresh"), ("X-Stretto-Cache", "on"),
        )
    ]  # fmt: skip
    assert results == ["bypass", "bypass", "refresh", "hit"]
    refused = chat(daemon, CLOSE, **{"X-Stretto-Cache": "offf"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-stretto-cache"


def test_the_commands(daemon: RunningDaemon, run: Run) -> None:
    assert run("clear").exit_code == 0
    chat(daemon, CLOSE)
    chat(daemon, CLOSE_TOO)
    stats = json.loads(run("stats", "--json").output)
    assert (stats["entries"], stats["semantic_entries"]) == (1, 1)
    assert "semantic_hits" in run("stats").output
    (entry,) = json.loads(run("inspect", "--json").output)
    assert (entry["question"], entry["hits"]) == (CLOSE, 1)
    listed = run("inspect").output
    assert "QUESTION" in listed
    assert CLOSE in listed
    shown = run("inspect", str(entry["id"])).output
    assert f"answer:\n{CLOSE}" in shown
    missing = run("inspect", "999999")
    assert missing.exit_code == 1
    assert "no entry 999999" in missing.output
    assert json.loads(run("clear", "--json").output) == {"deleted": 1}
    assert run("inspect", "--json").output.strip() == "[]"
    assert httpx2.request("DELETE", f"{daemon.url}/v1/cache").json() == {"deleted": 0}


def test_answers_outlive_the_daemon_and_no_change_of_what_made_them(tmp_path: Path, embedder: Path) -> None:
    with running(tmp_path, *flags(embedder)) as first:
        chat(first, CLOSE)
    with running(tmp_path, *flags(embedder)) as again:
        assert chat(again, CLOSE_TOO).headers["x-stretto-cache-match"] == "semantic"
        assert "asks no judge" in again.log
    with running(tmp_path, *flags(embedder, "--echo", "reply=Something else.")) as other:
        assert chat(other, CLOSE).headers["x-stretto-cache-result"] == "miss"
        assert "starts empty" in other.log


def test_exact_needs_no_embedding_model_and_off_keeps_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "exact", *ECHO, "--semantic-cache", "exact") as daemon:
        chat(daemon, CLOSE)
        assert chat(daemon, CLOSE).headers["x-stretto-cache-match"] == "exact"
        assert chat(daemon, CLOSE_TOO).headers["x-stretto-cache-result"] == "miss"
    daemon = launch(tmp_path / "off", *ECHO)
    try:
        chat(daemon, CLOSE)
        assert "x-stretto-cache-result" not in chat(daemon, CLOSE).headers
    finally:
        assert daemon.stop() == 0
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()
    assert not (tmp_path / "off" / "state" / "stretto.db").exists()


def test_without_an_embedding_model_it_does_not_start(tmp_path: Path) -> None:
    command = daemon_command(*ECHO, "--semantic-cache", "on", "--state-dir", str(tmp_path), "--port", "0")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=daemon_environment())
    assert ended.returncode == 1
    assert "stretto pull minilm" in ended.stderr
    assert "Traceback" not in ended.stderr
