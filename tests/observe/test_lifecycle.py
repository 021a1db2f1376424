"""The lines of a request: what they hold, and that content cannot get into them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.observe import DaemonLog, LifecycleLog, LogConfig, setup_logging
from stretto.observe.lifecycle import word

CANARY = "c4n4ry words of a user"


def logged(act: Callable[[LifecycleLog, DaemonLog], None], form: str = "json") -> list[str]:
    """The lines that ``act`` wrote."""
    reading, writing = os.pipe()
    with setup_logging(LogConfig(format=form, level="debug", fd=writing)):
        act(LifecycleLog(), DaemonLog())
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        return file.read().splitlines()


def test_a_priority_is_told_where_it_is_not_the_usual_one() -> None:
    def life(log: LifecycleLog, _: DaemonLog) -> None:
        for number, priority in enumerate(("high", "normal", "background", "what a day")):
            log.accepted(f"r{number}", stream=False, choices=1, priority=priority)

    lines = [json.loads(line) for line in logged(life)]
    assert [line.get("priority") for line in lines] == ["high", None, "background", "?"]


def test_a_requests_life() -> None:
    def life(log: LifecycleLog, _: DaemonLog) -> None:
        log.accepted("chatcmpl-1", stream=True, choices=1)
        log.queued("chatcmpl-1", prompt_tokens=12, max_tokens=100)
        log.prefilling("chatcmpl-1", prompt_tokens=12, queued_s=0.25)
        log.generating("chatcmpl-1", prompt_tokens=12, cached_tokens=4, prefill_s=0.5)
        log.completed(
            "chatcmpl-1",
            prompt_tokens=12,
            cached_tokens=4,
            completion_tokens=21,
            finish_reason="length+stop",
            queued_s=0.25,
            prefill_s=0.5,
            decode_s=2.0,
        )

    lines = [json.loads(line) for line in logged(life)]
    assert [line["event"] for line in lines] == [
        "accepted",
        "queued",
        "prefilling",
        "generating",
        "completed",
    ]
    assert {line["id"] for line in lines} == {"chatcmpl-1"}
    end = lines[-1]
    assert (end["prompt_tokens"], end["cached_tokens"], end["completion_tokens"]) == (12, 4, 21)
    assert end["finish"] == "length+stop"
    assert (end["prefill_tokens_per_s"], end["decode_tokens_per_s"]) == (16.0, 10.0)
    human = logged(life, "human")[-1]
    assert human[25:] == (
        "info    chatcmpl-1 completed prompt=12 cached=4 completion=21 finish=length+stop "
        "queued=0.250s prefill=0.500s decode=2.000s prefill=16.0tok/s decode=10.0tok/s"
    )


def test_rates_that_mean_nothing_are_left_out() -> None:
    (line,) = logged(
        lambda log, _: log.completed(
            "a",
            prompt_tokens=8,
            cached_tokens=8,
            completion_tokens=1,
            finish_reason="stop",
            queued_s=0,
            prefill_s=0,
            decode_s=0,
        )
    )
    assert not any(name.endswith("per_s") for name in json.loads(line))


def test_other_ends() -> None:
    def ends(log: LifecycleLog, _: DaemonLog) -> None:
        log.cancelled("a", phase="generating", completion_tokens=3, after_s=1.5)
        log.failed("b", phase="accepted", code="queue_full", after_s=0.0)

    first, second = (json.loads(line) for line in logged(ends))
    assert (first["event"], first["phase"], first["completion_tokens"], first["after_s"]) == (
        "cancelled",
        "generating",
        3,
        1.5,
    )
    assert (second["event"], second["level"], second["code"]) == ("failed", "warning", "queue_full")


@given(st.text(max_size=40))
def test_only_words_pass_for_words(text: str) -> None:
    shown = word(text)
    assert shown == text or shown == "?"
    assert " " not in shown
    assert shown.isascii()


NOISE = st.text(max_size=20)


@settings(max_examples=25, deadline=None)
@given(NOISE, NOISE, st.integers(0, 10**9), st.floats(0, 1e6), st.sampled_from(["json", "human", "journal"]))
def test_content_in_any_argument_is_never_shown(
    before: str, after: str, count: int, seconds: float, form: str
) -> None:
    text = f"{before}{CANARY}{after}"

    def life(log: LifecycleLog, _: DaemonLog) -> None:
        log.accepted(text, stream=True, choices=count)
        log.queued(text, prompt_tokens=count, max_tokens=count)
        log.prefilling(text, prompt_tokens=count, queued_s=seconds)
        log.generating(text, prompt_tokens=count, cached_tokens=count, prefill_s=seconds)
        log.completed(
            text,
            prompt_tokens=count,
            cached_tokens=0,
            completion_tokens=count,
            finish_reason=text,
            queued_s=seconds,
            prefill_s=seconds,
            decode_s=seconds,
        )
        log.cancelled(text, phase=text, completion_tokens=count, after_s=seconds)
        log.failed(text, phase=text, code=text, after_s=seconds)

    lines = logged(life, form)
    assert len(lines) == 7
    assert not any("c4n4ry" in line for line in lines)


def test_the_daemons_lines() -> None:
    def life(_: LifecycleLog, log: DaemonLog) -> None:
        log.starting(version="0.1.0", pid=7, model="smollm2")
        for step in range(101):
            log.loading("weights", step / 100)
        log.loading("kv", 0.0)
        log.ready(url="http://127.0.0.1:8080", context_tokens=8192)
        log.warning("A thing to know.", path="/a b\nc")
        log.draining("SIGTERM", running=2)
        log.error("A thing went wrong.")
        log.stopped(uptime_s=3.5)

    lines = [json.loads(line) for line in logged(life)]
    assert [line["event"] for line in lines] == [
        "starting", *["loading"] * 6, "ready", "warning", "draining", "error", "stopped",
    ]  # fmt: skip
    loading = [(line["phase"], line["percent"]) for line in lines if line["event"] == "loading"]
    assert loading == [
        ("weights", 0),
        ("weights", 25),
        ("weights", 50),
        ("weights", 75),
        ("weights", 100),
        ("kv", 0),
    ]
    assert lines[8]["text"] == "A thing to know."
    assert "\\n" in lines[8]["path"]


def test_nothing_is_made_for_a_level_that_is_off() -> None:
    logger = logging.getLogger("stretto.test-off")
    logger.setLevel("ERROR")
    try:
        assert logged(lambda _, __: LifecycleLog(logger).accepted("a", stream=True, choices=1)) == []
    finally:
        logger.setLevel(logging.NOTSET)


def test_it_is_what_the_pipeline_asks_for() -> None:
    from stretto.pipeline import RequestLog

    log: RequestLog = LifecycleLog()
    for name in ("accepted", "queued", "prefilling", "generating", "completed", "cancelled", "failed"):
        assert callable(getattr(log, name))
