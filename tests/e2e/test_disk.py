"""A disk that is full, read-only or broken under the real daemon, with memory, cache, ledger and log on it: what cannot be stored is refused
clearly, the model answers all the same where nobody's money is concerned, and nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.daemon import ECHO, RunningDaemon, daemon_command, daemon_environment, running
from support.http1 import chat, exchange
from support.ledger_books import ADMIN_TOKEN, ALICE, require_balanced, usd, write_provider
from support.small_disk import fill, make_read_only, small_disk

CHAT = "/v1/chat/completions"
AS_ALICE = {"Authorization": f"Bearer {ALICE}"}
AS_ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
KEPT = ("--memory", "--semantic-cache", "exact")


def flags(directory: Path) -> tuple[str, ...]:
    return (*ECHO, *KEPT, "--provider-config", str(write_provider(directory)))


class Asker:
    """Asks the daemon, and remembers what it was told."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.costs: list[int] = []
        self.notes: list[str] = []
        self._number = 0

    def owner(self, text: str) -> dict[str, str]:
        """A request without a key over the socket; it must be answered. The reply's head."""
        status, headers, data = exchange(self.daemon.socket, "POST", CHAT, chat(text))
        assert status == 200, data
        assert json.loads(data)["choices"][0]["message"]["content"] == text
        return headers

    def alice(self, text: str) -> tuple[int, str]:
        """A request that is paid: its status, and its error's code."""
        status, _, data = exchange(self.daemon.port, "POST", CHAT, chat(text), AS_ALICE)
        reply = json.loads(data)
        if status == 200:
            self.costs.append(usd(reply["usage"]["cost"]))
        return status, reply.get("error", {}).get("code", "")

    def note(self, text: str) -> tuple[int, str]:
        status, _, data = exchange(self.daemon.port, "POST", "/v1/memory", {"text": text}, AS_ALICE)
        if status == 201:
            self.notes.append(text)
        return status, json.loads(data).get("error", {}).get("code", "")

    def topup(self) -> tuple[int, str]:
        self._number += 1
        _, reply = self.get("/admin/credits", AS_ADMIN)
        body = {"amount": "0.01", "idempotency_key": f"payment-{self._number}", "note": "n" * 200}
        target = f"/admin/credits/{reply['data'][0]['id']}/topup"
        status, _, data = exchange(self.daemon.port, "POST", target, body, AS_ADMIN)
        return status, json.loads(data).get("error", {}).get("code", "")

    def get(self, target: str, headers: dict[str, str]) -> tuple[int, Any]:
        status, _, data = exchange(self.daemon.port, "GET", target, None, headers)
        return status, json.loads(data)


def until_refused(call: Callable[[str], tuple[int, str]]) -> tuple[int, str]:
    """What is there in the file already is used up first."""
    for number in range(400):
        found = call(f"question {number} " + "x" * 900)
        if found[0] not in (200, 201):
            return found
    raise AssertionError("never refused")


def test_a_full_disk_under_everything_that_is_kept(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "3m"):
        with running(disk, *flags(tmp_path)) as daemon:
            asker = Asker(daemon)
            asker.owner("zebra question")
            assert asker.owner("zebra question")["x-stretto-cache-result"] == "hit"
            assert asker.alice("an early question") == (200, "")
            assert asker.note("an early note") == (201, "")
            assert asker.topup() == (200, "")

            filler = fill(disk)
            assert until_refused(asker.alice) == (507, "store_full")
            assert until_refused(asker.note) == (507, "store_full")
            assert until_refused(lambda _: asker.topup()) == (507, "store_full")
            for number in range(20):  # nobody's money: answered, though not remembered and not kept
                assert asker.owner(f"late question {number}")["x-stretto-cache-result"] == "miss"
            assert asker.owner("zebra question")["x-stretto-cache-result"] == "hit"
            assert "x-stretto-memory-recalled" in asker.owner("another about a zebra")
            for target, headers in (
                ("/v1/memory", AS_ALICE),
                ("/v1/credits", AS_ALICE),
                ("/admin/credits", AS_ADMIN),
            ):
                assert asker.get(target, headers)[0] == 200  # what is there can be read
            assert asker.get("/health/ready", {})[0] == 200

            filler.unlink()
            assert asker.alice("a question after all") == (200, "")
            assert asker.note("a late note") == (201, "")
            assert asker.topup() == (200, "")
            asker.owner("yak question")
            assert asker.owner("yak question")["x-stretto-cache-result"] == "hit"
            _, listed = asker.get("/v1/memory?limit=1000", AS_ALICE)
            assert [entry["text"] for entry in listed["data"] if entry["kind"] == "note"] == asker.notes
            _, own = asker.get("/v1/credits", AS_ALICE)
            assert (usd(own["held"]), usd(own["spent"])) == (0, sum(asker.costs))
            assert "Traceback" not in daemon.log
        require_balanced(disk / "state" / "stretto.db")


def not_started(directory: Path, *more: str) -> str:
    """What a daemon says that must not start; never a traceback."""
    command = daemon_command(
        *("--port", "0", "--socket", str(directory.parent / "s.sock")),
        *("--state-dir", str(directory / "state"), *ECHO, *more),
    )
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=daemon_environment(), check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_read_only_disk_is_told_at_the_start_and_left_alone(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "8m"):
        with running(disk, *flags(tmp_path)) as daemon:
            asker = Asker(daemon)
            asker.alice("a question")
            asker.note("a note")
        before = (disk / "state" / "stretto.db").read_bytes()
        make_read_only(disk)
        said = not_started(disk, *flags(tmp_path)[2:])
        assert f"The state directory {disk / 'state'} cannot be used (Read-only file system)." in said
        assert "--state-dir" in said
        make_read_only(disk, False)
        assert (disk / "state" / "stretto.db").read_bytes() == before
        with running(disk, *flags(tmp_path)) as again:
            asker = Asker(again)
            _, listed = asker.get("/v1/memory", AS_ALICE)
            assert [entry["kind"] for entry in listed["data"]] == ["exchange", "note"]
            assert asker.alice("a question") == (200, "")


@pytest.mark.parametrize("feature", ["--memory", "--semantic-cache", "--provider-config"])
def test_a_truncated_file_stops_whatever_needs_it_and_nothing_else(tmp_path: Path, feature: str) -> None:
    with running(tmp_path, *flags(tmp_path)) as daemon:
        Asker(daemon).alice("a question")
    path = tmp_path / "state" / "stretto.db"
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 5000)
    value = {"--semantic-cache": ("exact",), "--provider-config": (str(tmp_path / "provider.json"),)}.get(
        feature, ()
    )
    said = not_started(tmp_path, feature, *value)
    assert f"The store {path} is damaged" in said
    assert "Put a backup in its place" in said
    assert path.read_bytes() == whole[:-5000]
    with running(tmp_path, *ECHO) as plain:
        assert exchange(plain.port, "POST", CHAT, chat("a question"))[0] == 200
    assert path.read_bytes() == whole[:-5000]
    path.write_bytes(whole)
    require_balanced(path)


def test_a_file_that_is_cut_under_the_running_daemon_ends_nothing(tmp_path: Path) -> None:
    with running(tmp_path, *flags(tmp_path)) as daemon:
        asker = Asker(daemon)
        asker.owner("zebra question")
        asker.alice("a question")
        path = tmp_path / "state" / "stretto.db"
        copy = tmp_path / "monday.db"
        command = [
            sys.executable,
            "-m",
            "stretto",
            "db",
            "--state-dir",
            str(path.parent),
            "backup",
            str(copy),
        ]
        subprocess.run(command, check=True, capture_output=True, env=daemon_environment())
        os.truncate(path, 8192)
        os.truncate(path.with_name("stretto.db-wal"), 0)
        for number in range(5):
            asker.owner(f"a question about a zebra, the {number}th")
        assert asker.get("/health/live", {})[0] == 200
    assert "is damaged" in not_started(tmp_path, "--memory")
    for file in path.parent.glob("stretto.db*"):
        file.unlink()
    copy.rename(path)
    require_balanced(path)
    with running(tmp_path, *flags(tmp_path)) as again:
        assert Asker(again).owner("zebra question")["x-stretto-cache-result"] == "hit"
