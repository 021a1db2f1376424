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
        bound = node.get(excluded)
        far = [node[name] for name in others if _is_number(node.get(name))]
        if not _is_number(bound) or not float(bound).is_integer() or not far:
            continue
        width = min((other - bound) * way for other in far)
        if 0 < width < 1:
            near = bound + max(width * _SHARE, abs(math.nextafter(bound, bound + way) - bound)) * way
            closest = max if way > 0 else min
            node[included] = closest(near, node[included]) if _is_number(node.get(included)) else near
            del node[excluded]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
