"""The machine's clock jumps, back and forth, under the running daemon: nothing is lost, out of order, or paid twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.daemon import ECHO, running
from support.http1 import chat, exchange, exchange_json
from support.ledger_books import ALICE, require_balanced, usd, write_provider

AS_ALICE = {"Authorization": f"Bearer {ALICE}"}
DAY_S = 86_400
CLOCK = Path(__file__).parents[1] / "support" / "moved_clock"


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    moved = tmp_path / "clock"
    path = os.pathsep.join((str(CLOCK), os.environ.get("PYTHONPATH", "")))
    env = {"PYTHONPATH": path, "MOVED_CLOCK": str(moved)}
    kept = ("--memory", "--memory-top-k", "9", "--semantic-cache", "exact", "--cache-ttl", "1h")
    flags = (*ECHO, *kept, "--provider-config", str(write_provider(tmp_path)))
    asked: list[str] = []
    costs: list[int] = []

    def ask(text: str) -> str:
        """What the cache did; the answer is right in any case."""
        status, headers, data = exchange(
            daemon.port, "POST", "/v1/chat/completions", chat(text), {**AS_ALICE, "X-Stretto-Session": "s"}
        )
        reply = json.loads(data)
        assert (status, reply["choices"][0]["message"]["content"]) == (200, text)
        costs.append(usd(reply["usage"]["cost"]))
        asked.append(text)
        return headers["x-stretto-cache-result"]

    def look(target: str) -> Any:
        status, reply = exchange_json(
            daemon.port, "GET", target, None, {**AS_ALICE, "X-Stretto-Session": "s"}
        )
        assert status == 200
        return reply

    def require_all(jumps_back: bool) -> None:
        listed = look("/v1/memory")["data"]
        assert [entry["user"] for entry in listed] == asked
        stamps = [entry["created"] for entry in listed]
        assert (stamps == sorted(stamps)) is not jumps_back  # the clock did jump
        own = look("/v1/credits")
        assert (usd(own["held"]), usd(own["spent"]), usd(own["given"])) == (0, sum(costs), usd(1))
        page = exchange_json(daemon.socket, "GET", f"/admin/credits/{own['id']}/ledger")[1]["data"]
        assert [usd(entry["amount"]) for entry in page] == [*(-cost for cost in reversed(costs)), usd(1)]
        after = [usd(entry["credit_after"]) for entry in page]
        assert after == sorted(after)

    moved.write_text(str(10 * DAY_S))
    with running(tmp_path, *flags, env=env) as daemon:
        assert [ask("zebra"), ask("yak"), ask("zebra")] == ["miss", "miss", "hit"]
        require_all(jumps_back=False)
        moved.write_text("0")  # ten days back
        assert [ask("yak"), ask("ibex")] == ["hit", "miss"]
        require_all(jumps_back=True)
        moved.write_text(str(2 * 3600))  # and two hours on: what was made after the jump is too old now
        assert [ask("gnu"), ask("ibex")] == ["miss", "miss"]
        require_all(jumps_back=True)
    require_balanced(tmp_path / "state" / "stretto.db")
    moved.write_text(str(-5 * DAY_S))
    with running(tmp_path, *flags, env=env) as daemon:
        assert [ask("gnu"), ask("okapi")] == ["hit", "miss"]
        require_all(jumps_back=True)
        assert "Traceback" not in daemon.log
    require_balanced(tmp_path / "state" / "stretto.db")
