"""Rounds against real servers: two daemons with the echo backend."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from stretto.bench import (
    BenchError,
    Figure,
    Plan,
    Prompts,
    Restartable,
    Results,
    ServerPlan,
    Trial,
    Wire,
    Work,
    document,
    draw,
    measure,
    peak_rss_bytes,
    started,
    table_rows,
)
from stretto.bench.works import WORKS
from stretto.errors import SettingsError
from stretto.serving import bind_tcp
from support.daemon import ECHO, daemon_environment, running
from support.http1 import exchange_json

WANTED = ("decode", "streams-8", "prefill-512", "stall")


ROOM = (*ECHO, "--echo", "context_tokens=5000,decode_delay_s=0.002")


async def ask_too_much(wire: Wire, prompts: Prompts, seed: str) -> Trial:
    sample = await wire.chat([{"role": "user", "content": "x" * 6000}], max_tokens=1)
    return Trial({"x": 1.0}, (sample.prompt_tokens,), (1,))


BROKEN = Work("broken", (Figure("x", "s", "lower"),), ask_too_much, 6001)


def works(*names: str) -> list[object]:
    return [work for work in WORKS if work.name in names]


async def test_two_servers_are_measured_side_by_side(tmp_path: Path) -> None:
    with running(tmp_path / "a", *ROOM) as a, running(tmp_path / "b", *ROOM) as b:
        told: list[str] = []
        plan = Plan(
            servers=[ServerPlan("a", a.url), ServerPlan("b", b.url)],
            works=[*works(*WANTED), BROKEN],
            rounds=2,
            warm_ups=0,
            seed="s",
        )
        results, models = await measure(plan, tell=told.append)
    assert models == {"a": "echo", "b": "echo"}
    assert results.notes == []
    assert [failure.partition(":")[0] for failure in results.failures] == ["broken"]
    assert "5000" in results.failures[0]  # and the other works went on
    assert [row.work for row in results.rows] == [
        "decode", "streams-8", "streams-8", "prefill-512", "prefill-512", "stall", "stall",
    ]  # fmt: skip
    assert all(len(row.values[name]) == 2 for row in results.rows for name in "ab")
    by_work = {
        work: [
            value for row in results.rows if row.work == work for name in "ab" for value in row.values[name]
        ]
        for work in WANTED
    }
    assert all(value > 0 for work in ("streams-8", "prefill-512") for value in by_work[work])
    # On a machine that is busy enough, all of an answer may reach the client in one piece.
    assert max(by_work["decode"]) > 0
    first, second = (
        [line.rpartition(" ")[2] for line in told if f"round {number}" in line and "broken" not in line]
        for number in (1, 2)
    )
    assert not any("round 0" in line for line in told)
    assert first == ["a", "b"] * 4
    assert second == ["b", "a"] * 4


def free_port() -> int:
    with bind_tcp("127.0.0.1", 0) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A daemon that can be started: its command line, and where it will answer."""
    for name, value in daemon_environment().items():
        monkeypatch.setenv(name, value)
    port = free_port()
    where = f"--port {port} --socket {tmp_path}/s.sock --state-dir {tmp_path}/state"
    return f"{sys.executable} -m stretto serve {' '.join(ROOM)} {where}", f"http://127.0.0.1:{port}"


async def test_a_server_is_started_measured_and_stopped(own: tuple[str, str]) -> None:
    command, url = own
    plan = Plan(servers=[ServerPlan("ours", url, command)], works=works("decode"), rounds=2, seed="s")
    results, _ = await measure(plan)
    rows = {(row.work, row.figure): row.values["ours"] for row in results.rows}
    assert len(rows["start", "ready"]) == 2
    idle, peak = rows["memory", "idle"][0], rows["memory", "peak"][0]
    assert 10 < idle <= peak < 2000
    async with started(command, url, limit_s=60, clock=time.monotonic) as child:
        assert peak_rss_bytes(child.pid) > 10_000_000
        with pytest.raises(BenchError, match="already"):
            async with started(command, url, limit_s=1, clock=time.monotonic):
                pass
    assert peak_rss_bytes(child.pid) == 0


async def test_a_conversation_goes_on_after_a_restart(own: tuple[str, str], tmp_path: Path) -> None:
    command, url = own
    plan = Plan(servers=[ServerPlan("ours", url, command)], works=works("restart"), rounds=1, seed="s")
    results, _ = await measure(plan)
    assert results.failures == []
    (ttft_s,) = next(row.values["ours"] for row in results.rows if row.work == "restart")
    assert ttft_s > 0
    async with Restartable(command, url, limit_s=60, clock=time.monotonic) as server:
        first = pid_of(tmp_path)
        await server.restart()
        assert pid_of(tmp_path) not in (None, first)
        assert server.ready_s > 0
        assert server.peak_bytes() > 10_000_000
    assert pid_of(tmp_path) is None


def pid_of(directory: Path) -> int | None:
    """Of the daemon at the socket."""
    if not (directory / "s.sock").exists():
        return None
    status, body = exchange_json(directory / "s.sock", "GET", "/admin/status")
    assert status == 200
    return int(body["pid"])


async def test_a_server_that_runs_by_itself_is_not_started_again() -> None:
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:1") as http:
        with pytest.raises(BenchError, match="was not started here"):
            await Wire(http, "m", time.monotonic).restart()


def test_the_command_says_what_a_restart_needs() -> None:
    run = [sys.executable, "-m", "stretto", "bench", "--work", "restart"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--start" in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/no/such/server", "cannot be run"),
        ("", "cannot be run"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "status 3"),
        (f"{sys.executable} -c 'input()'", "ended with status 1"),
    ],
)
async def test_a_server_that_does_not_come_up_is_told(command: str, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        async with started(command, f"http://127.0.0.1:{free_port()}", limit_s=30, clock=time.monotonic):
            pass


def results() -> Results:
    made = Results()
    made.row("decode", Figure("decode", "tokens/s", "higher")).values.update(a=[10, 30, 20], b=[10, 5, 40])
    made.row("prefill-512", Figure("ttft", "s", "lower")).values.update(a=[0.5], b=[2.0])
    made.row("start", Figure("ready", "s", "lower")).values.update(a=[1.0])
    return made


def test_a_ratio_above_one_is_better_whichever_way_the_figure_goes() -> None:
    header, rows = table_rows(results(), ["a", "b"])
    assert header == ["WORK", "FIGURE", "a", "b", "vs b"]
    assert rows[0] == ["decode", "decode (tokens/s)", "20", "10", "2.00x"]
    assert rows[1] == ["prefill-512", "ttft (s)", "0.5", "2", "4.00x"]
    assert rows[2] == ["start", "ready (s)", "1", "-", "-"]
    written = json.loads(json.dumps(document(results(), ["a", "b"], rounds=3, warm_ups=1, models={"a": "m"})))
    assert written["rows"][0]["values"] == {"a": [10, 30, 20], "b": [10, 5, 40]}
    assert [row["ratios"]["b"] for row in written["rows"]] == [2.0, 4.0, None]


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_the_picture(tmp_path: Path, name: str, begins: bytes) -> None:
    draw(results(), ["a", "b"], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    draw(results(), ["a"], tmp_path / name)


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"p\.xyz"):
        draw(results(), ["a", "b"], tmp_path / "p.xyz")


def test_the_command(tmp_path: Path) -> None:
    with running(tmp_path / "d", *ECHO) as daemon:
        done = subprocess.run(
            [
                sys.executable, "-m", "stretto", "bench", "--url", daemon.url, "--work", "decode", "--rounds", "1",
                "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.svg"),
            ],
            capture_output=True, text=True, check=False, env=daemon_environment(),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^decode +decode \(tokens/s\) +\d", done.stdout, re.M)
    assert json.loads((tmp_path / "out.json").read_text())["models"] == {"stretto": "echo"}
    assert (tmp_path / "out.svg").stat().st_size > 1000
