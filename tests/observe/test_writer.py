"""The log's thread: nothing is lost that is read, nothing blocks when nobody reads, and no content gets in."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.observe import DaemonLog, LifecycleLog, LogConfig, setup_logging
from stretto.observe.setup import goes_to_journal

CANARY = "c4n4ry-of-a-users-words"


class Pipe:
    """A pipe of which each end is closed once."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._open = {self.reading, self.writing}

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)

    def lines(self) -> list[str]:
        """Everything that was written, once the writer has stopped."""
        self.close(self.writing)
        return self.lines_until_closed()

    def lines_until_closed(self) -> list[str]:
        with os.fdopen(os.dup(self.reading), encoding="utf-8") as file:
            return file.read().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close(made.reading)
    made.close(made.writing)


def test_lines_come_out_in_order_and_all(pipe: Pipe) -> None:
    with setup_logging(LogConfig(format="json", fd=pipe.writing)) as writer:
        log = LifecycleLog()
        for number in range(200):
            log.queued(f"id-{number}", prompt_tokens=number, max_tokens=1)
    assert [json.loads(line)["prompt_tokens"] for line in pipe.lines()] == list(range(200))
    assert writer.stats() == {"written": 200, "dropped": 0, "waiting": 0}


def test_a_reader_that_stopped_reading_blocks_nobody_and_is_told_what_it_missed(pipe: Pipe) -> None:
    lines = 5000  # a pipe takes 64 KiB, about 600 of them
    with setup_logging(LogConfig(format="json", fd=pipe.writing, capacity=50, close_timeout_s=0.2)) as writer:
        log = LifecycleLog()
        for number in range(lines):
            log.queued(f"id-{number}", prompt_tokens=number, max_tokens=1)
        dropped = writer.stats()["dropped"]
        assert dropped > 0
    stats = writer.stats()
    assert stats["written"] + stats["dropped"] + stats["waiting"] >= lines
    got = pipe.lines()
    assert stats["written"] <= len(got) <= stats["written"] + 1


def test_dropped_lines_are_reported_once_somebody_reads(pipe: Pipe) -> None:
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(pipe.lines_until_closed()))
    with setup_logging(LogConfig(format="json", fd=pipe.writing, capacity=5, close_timeout_s=30)) as writer:
        log = LifecycleLog()
        while writer.stats()["dropped"] == 0:
            log.accepted("id", stream=True, choices=1)
        reader.start()
    pipe.close(pipe.writing)
    reader.join(30)
    lines = [json.loads(line) for line in got]
    reported = [line["lines"] for line in lines if line["event"] == "log_dropped"]
    assert sum(reported) == writer.stats()["dropped"] > 0
    assert len(lines) == writer.stats()["written"]


def test_a_reader_that_has_gone_ends_nothing(pipe: Pipe) -> None:
    pipe.close(pipe.reading)
    with setup_logging(LogConfig(fd=pipe.writing)) as writer:
        DaemonLog().starting(version="1")
    assert writer.stats()["written"] == 0
    assert writer.stats()["dropped"] > 0


def test_a_process_ends_while_its_stderr_is_full() -> None:
    code = """
import logging, sys
from stretto.observe import LifecycleLog, LogConfig, setup_logging
with setup_logging(LogConfig(close_timeout_s=0.2)):
    for number in range(3000):
        LifecycleLog().accepted("id", stream=True, choices=1)
sys.stdout.write("done")
"""
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writing, timeout=60
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"done")


def test_levels_and_restoration(pipe: Pipe) -> None:
    root, own = logging.getLogger(), logging.getLogger("stretto")
    before = (list(root.handlers), own.level, warnings.showwarning)
    with setup_logging(LogConfig(format="json", level="warning", fd=pipe.writing)):
        LifecycleLog().accepted("a", stream=False, choices=1)
        LifecycleLog().failed("b", phase="queued", code="queue_full", after_s=0.5)
    assert (list(root.handlers), own.level, warnings.showwarning) == before
    (line,) = [json.loads(line) for line in pipe.lines()]
    assert (line["event"], line["level"], line["code"]) == ("failed", "warning", "queue_full")


@pytest.mark.parametrize("bad", [{"format": "xml"}, {"level": "loud"}])
def test_a_wrong_configuration_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"it is '(xml|loud)'"):
        LogConfig(**bad)  # type: ignore[arg-type]


def test_journald_is_recognised_by_device_and_inode(pipe: Pipe, tmp_path: Path) -> None:
    status = os.fstat(pipe.writing)
    stream = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    assert goes_to_journal(pipe.writing, stream)
    assert not goes_to_journal(pipe.writing, {})
    assert not goes_to_journal(pipe.writing, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"})
    assert not goes_to_journal(9999, stream)


def test_auto_is_for_journald_when_it_listens(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(pipe.writing)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with setup_logging(LogConfig(fd=pipe.writing)):
        DaemonLog().ready(url="http://127.0.0.1:1")
    assert pipe.lines() == ["<6>ready url=http://127.0.0.1:1"]


def test_other_libraries_are_shown_by_place_and_never_by_what_they_say(pipe: Pipe) -> None:
    foreign = logging.getLogger("some.library")
    with setup_logging(LogConfig(format="json", level="debug", fd=pipe.writing)) as writer:
        foreign.warning("request %s", CANARY)
        foreign.error(f"f-string {CANARY}")
        foreign.info("not shown at all")
        try:
            raise RuntimeError(CANARY)
        except RuntimeError:
            foreign.exception(CANARY)
            logging.getLogger("stretto.room").exception("A step failed.")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn(CANARY, UserWarning, stacklevel=1)
        for name in ("some.library", "stretto.room"):  # a message that cannot be formatted
            writer.handle(logging.LogRecord(name, logging.WARNING, __file__, 1, "broken %d", (CANARY,), None))
        foreign.warning("unprintable", extra={"fields": CANARY, "event": CANARY, "text": CANARY})
    text = "\n".join(pipe.lines())
    assert CANARY not in text
    assert writer.stats()["dropped"] == 1
    documents = [json.loads(line) for line in text.splitlines()]
    own = [document for document in documents if document["event"] not in ("library", "log_dropped")]
    assert [(line["event"], line["text"], line["exception"]) for line in own] == [
        ("stretto.room", "A step failed.", "RuntimeError")
    ]
    places = [document["place"] for document in documents if document["event"] == "library"]
    assert len(places) == 6
    assert sum(place.startswith("observe/test_writer.py:") for place in places) == 5
    assert [
        document["exception"]
        for document in documents
        if "exception" in document and document["event"] == "library"
    ] == ["RuntimeError"]
