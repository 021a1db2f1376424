"""JSON files of a model directory: bounded, without duplicate keys, and refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stretto.errors import StartupError
from stretto.weights.faults import invalid

MAX_JSON_BYTES = 16 << 20


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes | None:
    """A whole file, None when it is not there. Raises StartupError when it is too long or cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartupError(f"{path}: cannot be read: {error.strerror}.", code="model_invalid") from error
    if len(data) > limit:
        raise invalid(path, f"is longer than {limit} bytes")
    return data


def read_object(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """A JSON object, None when the file is not there. Raises StartupError."""
    data = read_bytes(path, limit)
    return None if data is None else parse_object(path, data, "the file")


def parse_object(path: Path, data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises StartupError (``model_invalid``) for anything else, duplicate keys included."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise invalid(path, f"{what} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise invalid(path, f"{what} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice")
    return found
