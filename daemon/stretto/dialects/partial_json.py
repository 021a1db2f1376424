"""Reading the beginning of a JSON object, where the rest was never written."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from stretto.dialects.json_body import nested_deeper

# A string, a mark of structure, or a run of anything else: a number or a word, cut off or not.
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_MAX_DEPTH = 500


def load_object(text: str) -> dict[str, Any]:
    """The object that JSON text is, or begins: members and items that are whole, and of nested ones what there is.

    A string that is cut off is left out, as is a word or a number that is none yet, and a name without its value. Text that is not the
    beginning of an object gives an empty one, or what was right before it went wrong.
    """
    value = _loads(text)
    if value is None:
        value = _loads(_completed(text))
    return value if isinstance(value, dict) else {}


def _completed(text: str) -> str:
    """The text up to the last place where it can be closed, and closed there."""
    open_marks: list[str] = []
    end = 0
    value_due = True  # else a name, or the mark before the next value
    for piece in _PIECE.finditer(text):
        mark = piece.group()
        if mark in _CLOSERS:
            open_marks.append(mark)
            value_due = mark == "["
        elif mark in ("}", "]"):
            if not open_marks or _CLOSERS[open_marks[-1]] != mark:
                break
            open_marks.pop()
            value_due = False
        elif mark in (",", ":"):
            value_due = mark == ":" or open_marks[-1:] == ["["]
            continue
        elif _loads(mark) is None and mark != "null":
            break
        elif not value_due:
            continue  # a name counts with its value
        else:
            value_due = False
        end = piece.end()
    return text[:end] + "".join(_CLOSERS[mark] for mark in reversed(open_marks))


def _loads(text: str) -> Any:
    """The value, or None for what is none: no JSON, a number that no double holds, or nested so deep that it could not be written."""
    try:
        value = json.loads(text, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError):
        return None
    return None if nested_deeper(value, _MAX_DEPTH) else value


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError
    return value
