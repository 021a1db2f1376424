"""How much a chat template may use: time, written characters, and the size of any one value.

A template comes with a model file, so it is foreign code; the sandbox keeps it from reaching anything, and this keeps it from
taking the machine's time and memory. Nothing can interrupt a thread in the middle of a C function, so the rule is: no single
operation may be handed, or give back, a value above the size limit (every one is then short), and between operations the
deadline is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, TypeVar

T = TypeVar("T")

_WRITTEN_PER_CHAR = 4  # text may pass through macros and set-blocks on its way out
_INT_BITS = 4096


class TemplateLimit(Exception):
    """A template went over a limit. The text says which."""


class Budget:
    """What is left to one rendering."""

    __slots__ = ("_clock", "_deadline", "_max_chars", "_time_limit_s", "_written")

    def __init__(self, time_limit_s: float, max_chars: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._time_limit_s = time_limit_s
        self._deadline = clock() + time_limit_s
        self._max_chars = max_chars
        self._written = 0

    def tick(self) -> None:
        """Look at the clock. Called in every loop, call, filter, operator and output."""
        if self._clock() > self._deadline:
            raise TemplateLimit(f"it takes longer than {self._time_limit_s:g} s")

    def write(self, value: object) -> None:
        """Count what is about to be written, in the reply or in a macro's or block's own text."""
        self.tick()
        self._written += expanded_size(value, self._max_chars)
        if self._written > self._max_chars * _WRITTEN_PER_CHAR:
            raise TemplateLimit(f"it writes more than {self._max_chars * _WRITTEN_PER_CHAR} characters")

    def iterate(self, items: Iterator[T]) -> Iterator[T]:
        """The same items, with a look at the clock for each."""
        for item in items:
            self.tick()
            yield item


def expanded_size(value: object, limit: int) -> int:
    """About how many characters a value takes when written out; shared parts count each time they appear.

    Takes no longer than ``limit`` steps, whatever the value.

    Raises:
        TemplateLimit: it is more than ``limit``.
    """
    if isinstance(value, str):
        if len(value) > limit:
            raise _too_large(limit)
        return len(value)
    size = 0
    pending: list[Iterator[object]] = [iter((value,))]
    while pending:
        item = next(pending[-1], pending)
        if item is pending:
            pending.pop()
            continue
        size += 1
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, Mapping):
            pending.append(iter(item.values()))
            pending.append(iter(item.keys()))
        elif isinstance(item, (list, tuple, Set)):
            pending.append(iter(item))
        elif isinstance(item, int):
            size += item.bit_length() // 3
        if size > limit:
            raise _too_large(limit)
    return size


def check_size(size: int, limit: int) -> None:
    """Refuse a size (a string's, or a width that will make one) above the limit."""
    if size > limit:
        raise _too_large(limit)


def check_power(left: Any, right: Any) -> None:
    """Refuse a product or power of integers too large to compute in no time; ``right`` is the exponent."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _INT_BITS:
        raise TemplateLimit("it computes with too large an integer")


def check_product(left: Any, right: Any, limit: int) -> None:
    """Refuse ``left * right`` when the number or the sequence would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _INT_BITS:
            raise TemplateLimit("it computes with too large an integer")
        return
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            check_size((expanded_size(sequence, limit)) * max(count, 0), limit)


def _too_large(limit: int) -> TemplateLimit:
    return TemplateLimit(f"it makes a value of more than {limit} characters")
