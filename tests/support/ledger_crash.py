"""A daemon that bills, under load, killed at random moments; and what its books must say afterwards.

Used by the end-to-end tests (a few kills) and by benchmarks/credits_crash.py (as many as one likes).
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from support.daemon import ECHO, RunningDaemon, launch
from support.http1 import chat, connect, dechunk, exchange_json, request_bytes
from support.ledger_books import ADMIN_TOKEN, ALICE, BOB, require_balanced, usd, write_provider

CALLERS = 6
"""Threads that ask for answers, half of them for streams; one more tops keys up."""
ECHO_SCRIPT = "decode_delay_s=0.001"


@dataclass
class Acknowledged:
    """What clients were told, over all lives of the daemon.

    Attributes:
        costs: of each answer that was read to its end, by request id.
        given: dollars of each top-up that was acknowledged, by idempotency key; ``sent`` has those whose reply never came, too.
    """

    costs: dict[str, float] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, request_id: str, cost: float) -> None:
        with self._changed:
            assert request_id not in self.costs
            self.costs[request_id] = cost
            self._changed.notify_all()

    def note_given(self, key: str, amount: str) -> None:
        with self._changed:
            self.given[key] = amount
            self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self.costs) + len(self.given)

    def wait(self, count: int, limit_s: float) -> None:
        """Return when so many things were acknowledged in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, limit_s), "the load makes no progress"


class House:
    """A daemon in a directory, its provider file, and its callers."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.told = Acknowledged()
        self.draw = random.Random(seed)
        directory.mkdir(parents=True, exist_ok=True)
        self.provider = write_provider(directory)
        self.store = directory / "state" / "stretto.db"
        self._topups = 0
        self._daemon: RunningDaemon | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._end(self._daemon)

    def start(self) -> RunningDaemon:
        self._daemon = launch(
            self.directory, *ECHO, "--echo", ECHO_SCRIPT, "--provider-config", str(self.provider)
        )
        return self._daemon

    def kill_under_load(self, daemon: RunningDaemon, moment_s: float = 0.0) -> None:
        """Let callers loose, and kill the daemon after some more acknowledgements (and ``moment_s`` seconds)."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._call, args=(daemon, stop, number)) for number in range(CALLERS)
        ]
        threads.append(threading.Thread(target=self._top_up, args=(daemon, stop)))
        for thread in threads:
            thread.start()
        try:
            self.told.wait(self.told.count + self.draw.randrange(1, 40), 300.0)
            stop.wait(moment_s)
        finally:
            self._end(daemon)
            stop.set()
            for thread in threads:
                thread.join(60.0)

    def _end(self, daemon: RunningDaemon) -> None:
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGKILL)
            daemon.process.wait()
        assert daemon.process.stdout is not None
        daemon.process.stdout.close()

    def settle_doubts(self, daemon: RunningDaemon) -> None:
        """Send again what was sent and not answered, as a careful client does."""
        for key, amount in self.told.sent.items():
            if key not in self.told.given:
                self._give(daemon, key, amount)

    def require_good_books(self, daemon: RunningDaemon) -> dict[str, int]:
        """Fail unless everything that was acknowledged is there, once, and nothing else was paid. The daemon runs, and nobody asks it."""
        require_balanced(self.store)
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            rows = connection.execute(
                "SELECT request, state, reason, cost FROM ledger_reservation"
            ).fetchall()
            gifts = dict(
                connection.execute(
                    "SELECT e.idempotency, -p.amount FROM ledger_entry e JOIN ledger_posting p ON p.entry = e.id AND p.account = 1"
                )
            )
        paid: dict[str, int] = {}
        for request, state, reason, cost in rows:
            assert state in ("settled", "released"), f"{request} is still {state}"
            assert state == "settled" or reason in ("failed", "process_ended")
            if state == "settled":
                assert request not in paid, f"{request} was paid twice"
                paid[request] = cost
        for request, cost in self.told.costs.items():
            assert paid.get(request) == round(Decimal(str(cost)) * 10**12), f"{request} was acknowledged"
        for key, amount in self.told.sent.items():
            assert gifts.get(f"admin:{key}") == usd(amount), f"top-up {key}"
        assert len(gifts) == len(self.told.sent) + 2  # and the first balances
        listed = exchange_json(daemon.socket, "GET", "/admin/credits")[1]
        total = {
            name: sum(usd(key[name]) for key in listed["data"])
            for name in ("available", "held", "spent", "given")
        }
        assert total["held"] == 0
        assert total["spent"] == sum(paid.values())
        assert total["given"] == 2 * usd(1) + sum(usd(amount) for amount in self.told.sent.values())
        assert total["available"] == total["given"] - total["spent"]
        return {
            "requests": len(rows),
            "paid": len(paid),
            "acknowledged": len(self.told.costs),
            "topups": len(gifts) - 2,
        }

    # Callers -------------------------------------------------------------------------------------------------------

    def _call(self, daemon: RunningDaemon, stop: threading.Event, number: int) -> None:
        key = (ALICE, BOB)[number % 2]
        text = f"caller {number} says " + "word " * (number + 1)
        with contextlib.suppress(OSError):
            while not stop.is_set():
                status, reply = self._ask(
                    daemon, key, chat(text, max_tokens=40, stream=number % 2 == 0, stream_options=None)
                )
                if status == 200 and reply is not None:
                    self.told.note(reply["id"], reply["usage"]["cost"])
                elif status == 402:
                    self.told.refused += 1

    def _ask(
        self, daemon: RunningDaemon, key: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any] | None]:
        """Status, and the reply with its usage if it came to its end."""
        if body["stream"]:
            body = {**body, "stream_options": {"include_usage": True}}
        else:
            del body["stream_options"]
        with connect(daemon.port) as sock:
            headers = {"Authorization": f"Bearer {key}"}
            sock.sendall(request_bytes("POST", "/v1/chat/completions", body, headers))
            received = b""
            while piece := sock.recv(65536):
                received += piece
        head, _, rest = received.partition(b"\r\n\r\n")
        if not head:
            return 0, None
        status = int(head.split()[1])
        if status != 200:
            return status, None
        if not body["stream"]:
            with contextlib.suppress(ValueError):  # cut short
                return status, json.loads(rest)
            return status, None
        with contextlib.suppress(ValueError, IndexError):
            rest = dechunk(rest)
        if b"data: [DONE]\n\n" not in rest:
            return status, None
        frames = [json.loads(line[6:]) for line in rest.split(b"\n") if line.startswith(b"data: {")]
        return status, next(frame for frame in frames if frame.get("usage"))

    def _top_up(self, daemon: RunningDaemon, stop: threading.Event) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):  # the daemon has died
            while not stop.is_set():
                self._topups += 1
                key = f"payment {self._topups}".replace(" ", "-")
                amount = f"0.{self._topups % 9 + 1:02}"
                self.told.sent[key] = amount
                self._give(daemon, key, amount)

    def _give(self, daemon: RunningDaemon, key: str, amount: str) -> None:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        status, listed = exchange_json(daemon.port, "GET", "/admin/credits", None, headers)
        assert status == 200
        target = f"/admin/credits/{listed['data'][0]['id']}/topup"
        body = {"amount": amount, "idempotency_key": key}
        status, given = exchange_json(daemon.port, "POST", target, body, headers)
        assert status == 200, given
        self.told.note_given(key, amount)
