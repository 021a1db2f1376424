"""Time as the store keeps it: whole microseconds of UTC since 1970, by a clock that may be set back.

Nothing is ordered by these stamps: rows are in the order of their ``INTEGER PRIMARY KEY``, whatever the clock did in between.
"""

from __future__ import annotations

import time

MICROSECONDS = 1_000_000


def now_us() -> int:
    """The wall clock, in microseconds of UTC."""
    return time.time_ns() // 1000


def age_us(then_us: int, now_us: int) -> int:
    """How old a stamp is: 0 for one that lies ahead because the clock was set back since."""
    return max(0, now_us - then_us)
