"""The kinds of value a setting can have: how each is read from text and from TOML, and what it says is allowed.

Every kind has the same face: ``from_text`` (flags and environment), ``from_toml`` (a value that ``tomllib`` made), ``to_toml``
(its twin), ``schema`` (JSON Schema 2020-12) and ``allowed`` (for messages, help and the docs table). Reading raises ``ValueError``
without a message of its own: the message is always ``allowed``, so that the two cannot drift apart.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

JsonObject = dict[str, object]


class Kind(Protocol):
    """See the module's text."""

    @property
    def metavar(self) -> str:
        """What ``--help`` shows in place of the value."""
        ...

    @property
    def allowed(self) -> str:
        """What is allowed, to follow "must be"."""
        ...

    def from_text(self, text: str) -> object:
        """Read a flag or an environment variable. Raises ValueError."""
        ...

    def from_toml(self, value: object, base: Path) -> object:
        """Check a TOML value; relative paths are relative to ``base``. Raises ValueError."""
        ...

    def to_toml(self, value: object) -> str:
        """Write the value so that ``from_toml`` reads it back."""
        ...

    def schema(self) -> JsonObject:
        """JSON Schema of the TOML value."""
        ...


def toml_string(text: str) -> str:
    """A TOML basic string. JSON's escapes are a subset of TOML's once DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Text:
    """A string that matches ``pattern`` as a whole."""

    pattern: str
    allowed: str
    metavar: str = "TEXT"

    def from_text(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError
        return text

    def from_toml(self, value: object, base: Path) -> str:
        if not isinstance(value, str):
            raise ValueError
        return self.from_text(value)

    def to_toml(self, value: object) -> str:
        return toml_string(str(value))

    def schema(self) -> JsonObject:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class TextList:
    """Strings that each match ``pattern``: a repeatable flag, commas in the environment, an array in TOML."""

    pattern: str
    allowed_item: str
    metavar: str = "TEXT"

    @property
    def allowed(self) -> str:
        return f"a list of which each item is {self.allowed_item}"

    def from_text(self, text: str) -> tuple[str, ...]:
        return self.from_items([item.strip() for item in text.split(",")] if text.strip() else [])

    def from_items(self, items: Sequence[object]) -> tuple[str, ...]:
        """Check each item; order is kept, doubles are dropped."""
        checked: dict[str, None] = {}
        for item in items:
            if not isinstance(item, str) or re.fullmatch(self.pattern, item) is None:
                raise ValueError
            checked[item] = None
        return tuple(checked)

    def from_toml(self, value: object, base: Path) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError
        return self.from_items(value)

    def to_toml(self, value: object) -> str:
        assert isinstance(value, tuple)
        return "[" + ", ".join(toml_string(item) for item in value) + "]"

    def schema(self) -> JsonObject:
        return {"type": "array", "items": {"type": "string", "pattern": f"^(?:{self.pattern})$"}}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.options)

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.options[:-1])} or {self.options[-1]}"

    def from_text(self, text: str) -> str:
        if text not in self.options:
            raise ValueError
        return text

    def from_toml(self, value: object, base: Path) -> str:
        if not isinstance(value, str):
            raise ValueError
        return self.from_text(value)

    def to_toml(self, value: object) -> str:
        return toml_string(str(value))

    def schema(self) -> JsonObject:
        return {"enum": list(self.options)}


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer of a closed range."""

    low: int
    high: int
    note: str = ""
    metavar: str = "N"

    @property
    def allowed(self) -> str:
        return f"an integer from {self.low} to {self.high}" + (f" ({self.note})" if self.note else "")

    def from_text(self, text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text) is None:
            raise ValueError
        return self._checked(int(text))

    def from_toml(self, value: object, base: Path) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        return self._checked(value)

    def _checked(self, value: int) -> int:
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def to_toml(self, value: object) -> str:
        return str(value)

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number of a closed range; ``above`` makes the lower end open."""

    low: float
    high: float
    above: bool = False
    unit: str = ""
    metavar: str = "X"

    @property
    def allowed(self) -> str:
        of = f" of {self.unit}" if self.unit else ""
        start = f"above {self.low:g}, at most" if self.above else f"from {self.low:g} to"
        return f"a number{of} {start} {self.high:g}"

    def from_text(self, text: str) -> float:
        if re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text) is None:
            raise ValueError
        return self._checked(float(text))

    def from_toml(self, value: object, base: Path) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        return self._checked(float(value))

    def _checked(self, value: float) -> float:
        if (
            not math.isfinite(value)
            or not self.low <= value <= self.high
            or (self.above and value == self.low)
        ):
            raise ValueError
        return value

    def to_toml(self, value: object) -> str:
        assert isinstance(value, float)
        return str(int(value)) if value == int(value) else repr(value)

    def schema(self) -> JsonObject:
        return {
            "type": "number",
            "exclusiveMinimum" if self.above else "minimum": self.low,
            "maximum": self.high,
        }


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time with its unit; the value is seconds."""

    metavar: str = "TIME"
    allowed: str = "a time above 0 with its unit, such as 30s, 15m, 12h or 7d"

    def from_text(self, text: str) -> float:
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text)
        if found is None or float(found[1]) == 0:
            raise ValueError
        return float(found[1]) * _UNITS_S[found[2]]

    def from_toml(self, value: object, base: Path) -> float:
        if not isinstance(value, str):
            raise ValueError
        return self.from_text(value)

    def to_toml(self, value: object) -> str:
        assert isinstance(value, float)
        unit = next(unit for unit, seconds in _UNITS_S.items() if value % seconds == 0 or unit == "s")
        count = f"{value / _UNITS_S[unit]:.3f}".rstrip("0").rstrip(".")
        return toml_string(f"{count}{unit}")

    def schema(self) -> JsonObject:
        return {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,3})?[smhd]$"}


_UNITS_S = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    metavar: str = ""
    allowed: str = "true or false (in the environment also 1, 0, yes, no, on, off)"

    def from_text(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ValueError

    def from_toml(self, value: object, base: Path) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def to_toml(self, value: object) -> str:
        return "true" if value else "false"

    def schema(self) -> JsonObject:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path; ``~`` is expanded, and a relative one is made absolute. ``max_bytes`` bounds the whole of it."""

    max_bytes: int = 4095
    allowed: str = "a path"
    metavar: str = "PATH"

    def from_text(self, text: str) -> Path:
        return self._checked(text, Path.cwd())

    def from_toml(self, value: object, base: Path) -> Path:
        if not isinstance(value, str):
            raise ValueError
        return self._checked(value, base)

    def _checked(self, text: str, base: Path) -> Path:
        if not text or "\0" in text:
            raise ValueError
        try:
            expanded = Path(text).expanduser()
        except RuntimeError as error:
            raise ValueError from error
        path = Path(os.path.normpath(base / expanded))
        if len(os.fsencode(path)) > self.max_bytes:
            raise ValueError
        return path

    def to_toml(self, value: object) -> str:
        return toml_string(str(value))

    def schema(self) -> JsonObject:
        return {"type": "string", "minLength": 1}
