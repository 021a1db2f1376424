"""How long a call may take: the limits, and a call's account of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from clientlib.errors import Timeout
from clientlib.link import Link
from clientlib.steps import Flow, WaitSocket


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds; ``math.inf`` is none.

    Attributes:
        connect_s: until the connection stands.
        idle_s: between two reads of a reply, or two writes of a request. In a stream it counts from the start, because the
            daemon sends a comment every 10 s while there is nothing else to send; for a whole reply, which comes all at once when
            the answer is complete, it counts from the first byte on.
        total_s: for a whole call, retries included. Streams have none unless the call names one (``timeout_s``).
    """

    connect_s: float = 5.0
    idle_s: float = 60.0
    total_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "idle_s", "total_s"):
            check_limit(name, getattr(self, name))


def check_limit(name: str, value: float) -> float:
    """``value``, if it is a number of seconds above 0. Raises ValueError."""
    if not value > 0:
        raise ValueError(f"{name} = {value!r}: it must be above 0; math.inf means no limit")
    return value


class Budget:
    """What is left of a call's time."""

    def __init__(
        self, timeouts: Timeouts, total_s: float, *, stream: bool, clock: Callable[[], float] = time.monotonic
    ):
        self._timeouts = timeouts
        self._clock = clock
        self._total_s = total_s
        self._deadline = clock() + total_s
        self._stream = stream

    def connect_deadline(self) -> float:
        """The moment (of ``now``'s clock) by which a connection begun now must stand."""
        return min(self.now() + self._timeouts.connect_s, self._deadline)

    def now(self) -> float:
        """The clock that deadlines are told in."""
        return self._clock()

    def allows(self, pause_s: float) -> bool:
        """Whether a pause would leave time for anything after it."""
        return self.now() + pause_s < self._deadline

    def until(self, deadline: float) -> float:
        """Seconds left before ``deadline``. Raises Timeout(phase="connect") when there are none."""
        left = min(deadline, self._deadline) - self.now()
        if left <= 0:
            raise self._expired("total" if self._deadline <= deadline else "connect")
        return left

    def readable(self, link: Link) -> Flow[None]:
        """Wait for the next bytes of a reply. Raises Timeout."""
        idle = self._stream or link.wire.reply_begun
        yield from self._wait(link, write=False, limit_s=self._timeouts.idle_s if idle else math.inf)

    def writable(self, link: Link) -> Flow[None]:
        """Wait until more of the request can be written. Raises Timeout."""
        yield from self._wait(link, write=True, limit_s=self._timeouts.idle_s)

    def _wait(self, link: Link, *, write: bool, limit_s: float) -> Flow[None]:
        left = self._deadline - self.now()
        if left <= 0:
            raise self._expired("total")
        ready: bool = yield WaitSocket(link.sock, write, min(left, limit_s))
        if not ready:
            raise self._expired("total" if left <= limit_s else "write" if write else "idle")

    def _expired(self, phase: Literal["connect", "write", "idle", "total"]) -> Timeout:
        match phase:
            case "connect":
                message = f"No connection within {self._timeouts.connect_s:g} s."
            case "write":
                message = f"The daemon took no byte of the request for {self._timeouts.idle_s:g} s."
            case "idle":
                message = f"The daemon sent nothing for {self._timeouts.idle_s:g} s."
            case "total":
                message = f"The call was not complete within {self._total_s:g} s."
        return Timeout(
            message,
            phase=phase,
            remedy="The request was cancelled; give it more time with timeout_s or Timeouts.",
        )
