"""Admission: who may come in at all, decided before anything is rendered or tokenised."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stretto.conversation import Priority
from stretto.errors import InvalidRequest, QueueFull

_SMOOTHING = 0.2
_FIRST_GUESS_S = 2.0
_LONGEST_RETRY_S = 60.0


class Admission:
    """Counts the sequences inside and refuses what would wait behind more than ``queue_limit`` others, or behind half as many if it is
    background work: that never fills the queue for the others.

    ``max_running + queue_limit`` sequences may be inside. When KV memory lets fewer run at once than ``max_running``, the
    engine's own count of waiting sequences keeps the promise instead.

    Args:
        max_running: sequences that run at once.
        queue_limit: sequences that may wait.
        waiting: how many sequences the engine holds back for want of room; not those that its next step will take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        max_running: int,
        queue_limit: int,
        *,
        waiting: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_running = max_running
        self.queue_limit = queue_limit
        self._waiting = waiting
        self._clock = clock
        self._inside = 0
        self._refused = 0
        self._typical_s = _FIRST_GUESS_S

    @contextmanager
    def enter(self, sequences: int, priority: Priority = "normal") -> Iterator[None]:
        """Hold room for a request of so many sequences.

        Raises:
            QueueFull: with ``retry_after_s`` from how long requests have been taking.
            InvalidRequest: the request alone is larger than the whole room.
        """
        limit = self.queue_limit // 2 if priority == "background" else self.queue_limit
        room = self.max_running + limit
        if sequences > room:
            raise InvalidRequest(
                f"This request asks for {sequences} answers, but this server holds at most {room} at once "
                f"({self.max_running} running and {limit} waiting).",
                param="n",
                remedy="Ask for fewer answers, or to fewer prompts, a request; or raise --max-batch or --queue-limit.",
            )
        waiting = self._waiting()
        if self._inside + sequences > room or (waiting > 0 and waiting + sequences > limit):
            self._refused += 1
            raise QueueFull(
                f"The queue is full: {self._inside} requests are inside, {waiting} of them waiting "
                f"(--max-batch {self.max_running}, --queue-limit {self.queue_limit}"
                f"{', of which background work may take half' if limit < self.queue_limit else ''}).",
                remedy="Try again after the time in Retry-After.",
                retry_after_s=self._retry_after_s(),
            )
        self._inside += sequences
        entered = self._clock()
        try:
            yield
        finally:
            self._inside -= sequences
            self._typical_s += _SMOOTHING * (self._clock() - entered - self._typical_s)

    def _retry_after_s(self) -> float:
        return min(_LONGEST_RETRY_S, max(1.0, math.ceil(self._typical_s)))

    def stats(self) -> dict[str, object]:
        """What is inside now, and how many were turned away."""
        return {
            "inside": self._inside,
            "waiting": self._waiting(),
            "max_running": self.max_running,
            "queue_limit": self.queue_limit,
            "refused_total": self._refused,
            "typical_request_s": round(self._typical_s, 3),
        }
