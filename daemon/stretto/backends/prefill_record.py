"""What was measured of prompts on this machine, kept in a small file so that it is measured once."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from stretto.weights.durable import write_whole

_MOST_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """Prompt tokens a second."""

    native: float
    torch: float


class PrefillRecord:
    """One measurement in the file: of one model, machine and setting. An unreadable file is an empty one, and one that cannot be written
    costs the next start a measurement."""

    def __init__(self, path: Path, key: str) -> None:
        """``key``: all that the rates depend on."""
        self._path, self._key = path, key

    def read(self) -> Rates | None:
        """What was measured, or None."""
        found = self._entries().get(self._key)
        if not isinstance(found, dict):
            return None
        native, torch = found.get("native"), found.get("torch")
        if not all(isinstance(rate, (int, float)) and rate > 0 for rate in (native, torch)):
            return None
        return Rates(float(native), float(torch))  # type: ignore[arg-type]

    def write(self, rates: Rates) -> None:
        """Keep it, whole or not at all; the oldest entries go first."""
        entries = self._entries()
        entries.pop(self._key, None)
        entries[self._key] = {"native": round(rates.native, 3), "torch": round(rates.torch, 3)}
        kept = dict(list(entries.items())[-_MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            write_whole(self._path, json.dumps(kept, indent=1).encode())

    def _entries(self) -> dict[str, object]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
