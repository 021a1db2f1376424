"""Known text survives the daemon's end, and its sudden death."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

from support.daemon import ECHO, RunningDaemon, launch, running
from support.http1 import chat, exchange_json

TEXT = "A long conversation about bridges, and who built them, and why they still stand. " * 12


def ask(daemon: RunningDaemon, text: str = TEXT) -> tuple[str, dict[str, int]]:
    status, reply = exchange_json(daemon.port, "POST", "/v1/chat/completions", chat(text))
    assert status == 200
    usage = reply["usage"]
    return reply["choices"][0]["message"]["content"], {
        "prompt": usage["prompt_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
    }


def store_of(daemon: RunningDaemon) -> dict[str, int]:
    found: dict[str, int] = exchange_json(daemon.socket, "GET", "/admin/status")[1]["engine"]["prefix_store"]
    return found


def test_a_restart_costs_no_known_text(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO) as daemon:
        assert ask(daemon)[1]["cached"] == 0
    files = list((tmp_path / "state" / "prefix").rglob("*.kv"))
    assert len(files) > 20
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    with running(tmp_path, *ECHO) as daemon:
        assert store_of(daemon)["blocks"] == len(files)
        text, usage = ask(daemon)
        assert text == TEXT
        assert usage["cached"] == (usage["prompt"] - 1) // 16 * 16
        assert store_of(daemon)["restored_tokens_total"] == usage["cached"]
    with running(tmp_path, *ECHO, "--prefix-store", "off") as daemon:
        assert ask(daemon)[1]["cached"] == 0
        assert store_of(daemon) == {}


def test_a_killed_daemon_leaves_what_was_saved(tmp_path: Path) -> None:
    daemon = launch(tmp_path, *ECHO)
    try:
        ask(daemon)
        while store_of(daemon)["pending_blocks"] or store_of(daemon)["queued_bytes"]:
            pass  # each look gives the daemon a turn
    finally:
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()
    victim = next((tmp_path / "state" / "prefix").rglob("*.20.kv"))  # the 20th block of the prompt
    victim.write_bytes(victim.read_bytes()[:-9])  # as a disk that lost power leaves it
    with running(tmp_path, *ECHO) as daemon:
        text, usage = ask(daemon)
        assert text == TEXT
        assert 19 * 16 <= usage["cached"] < (usage["prompt"] - 1) // 16 * 16
        assert store_of(daemon)["broken_total"] == 1
