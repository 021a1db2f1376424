"""Typed look-ups in config.json, and the readings that several families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.weights.faults import invalid, unsupported

_KINDS = {"full_attention": False, "sliding_attention": True}


class HFReader:
    """Values of config.json by key. Raises StartupError naming a key whose value has the wrong type.

    Attributes:
        path: of config.json, for messages.
        values: its contents.
    """

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def whole(self, key: str, otherwise: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = otherwise
        if value is None:
            raise invalid(self.path, f"{key} is missing")
        if type(value) is not int:
            raise invalid(self.path, f"{key} is {value!r}, not a whole number")
        return value

    def number(self, key: str, otherwise: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = otherwise
        if value is None:
            raise invalid(self.path, f"{key} is missing")
        if type(value) is int and abs(value) < 1 << 53:
            return float(value)
        if type(value) is not float:
            raise invalid(self.path, f"{key} is {value!r}, not a number")
        return value

    def flag(self, key: str, otherwise: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return otherwise
        if type(value) is not bool:
            raise invalid(self.path, f"{key} is {value!r}, not a truth value")
        return value

    def optional(self, key: str) -> float | None:
        """A number, or None where it is left out."""
        return None if self.values.get(key) is None else self.number(key)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
            raise invalid(self.path, f"{key} is {short(value)}, not a list of numbers")
        return tuple(float(item) for item in value)

    def sliding(self, layers: int, otherwise: Sequence[bool]) -> tuple[bool, ...]:
        """Which layers have a sliding window, by ``layer_types``; ``otherwise`` where that is left out."""
        kinds = self.values.get("layer_types")
        if kinds is None:
            return tuple(otherwise)
        if not isinstance(kinds, list) or any(kind not in _KINDS for kind in kinds):
            raise unsupported(
                self.path, f"layer_types is {short(kinds)}; computed are {' and '.join(_KINDS)}"
            )
        if len(kinds) != layers:
            raise invalid(self.path, f"layer_types has {len(kinds)} entries for {layers} layers")
        return tuple(_KINDS[kind] for kind in kinds)

    def window(self, key: str = "sliding_window") -> int:
        """A sliding window: how many positions a token sees, its own included."""
        window = self.whole(key)
        if window < 1:
            raise invalid(self.path, f"{key} is {window}")
        return window


def short(value: object) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
