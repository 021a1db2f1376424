"""Bounds of numbers, written so that the compiler keeps to them.

Where no whole number lies between two bounds, llguidance (as of 1.9) allows an excluded bound that is whole itself: of the numbers
above 0 and up to 0.5, it allows 0. Such a bound becomes one that is included, and so little further in that nobody misses what is between.
"""

from __future__ import annotations

import math
from typing import Any

_SHARE = 2.0**-30
"""Of the distance between the bounds, by which one moves."""


def mend_bounds(node: dict[str, Any]) -> None:
    """Rewrite the bounds of a schema of numbers in place, where that is needed."""
    for excluded, included, others, way in (
        ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
    ):
        bound = _number(node.get(excluded))
        far = [other for name in others if (other := _number(node.get(name))) is not None]
        if bound is None or not float(bound).is_integer() or not far:
            continue
        width = min((other - bound) * way for other in far)
        if 0 < width < 1:
            near = bound + max(width * _SHARE, abs(math.nextafter(bound, bound + way) - bound)) * way
            known = _number(node.get(included))
            node[included] = near if known is None else max(near, known) if way > 0 else min(near, known)
            del node[excluded]


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
