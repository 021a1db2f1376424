"""One log line as data, and its two forms. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType

Scalar = str | int | float | bool
Fields = Mapping[str, Scalar]

MAX_TEXT_CHARS = 1000
MAX_FRAMES = 8

# sd-daemon(3): journald reads a syslog priority from the start of each line.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says.

    Attributes:
        time_s: Unix time.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        event: what happened, one word, e.g. ``completed``.
        fields: in the order in which they are shown. Units are in the names: ``_s``, ``_bytes``, ``_tokens``, ``_per_s``.
        text: a sentence for a person, or empty.
    """

    time_s: float
    level: str
    event: str
    fields: Fields = field(default_factory=dict)
    text: str = ""


def clean(text: str) -> str:
    """Text that cannot break out of its line: control characters and line separators escaped, length bounded."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS] + "…"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def describe_exception(error: BaseException) -> dict[str, Scalar]:
    """Type and place of an exception, innermost frame last. Never its message, which may quote what a client sent."""
    found: dict[str, Scalar] = {"exception": type(error).__name__}
    if isinstance(error, BaseExceptionGroup):
        found["exceptions"] = " ".join(dict.fromkeys(type(leaf).__name__ for leaf in _leaves(error)))
    if error.__cause__ is not None:
        found["cause"] = type(error.__cause__).__name__
    if error.__traceback__ is not None:
        found["at"] = " > ".join(_frames(error.__traceback__))
    return found


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for member in group.exceptions:
        leaves += _leaves(member) if isinstance(member, BaseExceptionGroup) else [member]
    return leaves


def _frames(traceback: TracebackType | None) -> list[str]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{short_path(code.co_filename)}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return frames[-MAX_FRAMES:]


def short_path(path: str) -> str:
    """A source file by its folder and name."""
    return "/".join(path.rsplit("/", 2)[-2:])


def _human_value(value: Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    text = clean(str(value))
    return (
        text
        if text and " " not in text and '"' not in text and "=" not in text
        else json.dumps(text, ensure_ascii=False)
    )


def _human_field(name: str, value: Scalar) -> str:
    if name.endswith("_tokens_per_s"):
        return f"{name.removesuffix('_tokens_per_s')}={float(value):.1f}tok/s"
    if name.endswith("_tokens"):
        return f"{name.removesuffix('_tokens')}={_human_value(value)}"
    if name.endswith("_s") and isinstance(value, float):
        return f"{name.removesuffix('_s')}={value:.3f}s"
    return f"{name}={_human_value(value)}"


def human_body(line: Line) -> str:
    """The line without time and level: id, event, text, then ``name=value`` pairs."""
    parts = []
    if "id" in line.fields:
        parts.append(_human_value(line.fields["id"]))
    parts.append(clean(line.event))
    if line.text:
        parts.append(clean(line.text))
    parts += [_human_field(name, value) for name, value in line.fields.items() if name != "id"]
    return " ".join(parts)


def human(line: Line) -> str:
    """For people: UTC time, level, body."""
    moment = datetime.fromtimestamp(line.time_s, UTC)
    return (
        f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z {line.level:<7} {human_body(line)}\n"
    )


def journal(line: Line) -> str:
    """For journald, which adds the time itself and reads the priority from the prefix."""
    return f"<{_PRIORITIES[line.level]}>{human_body(line)}\n"


def json_line(line: Line) -> str:
    """One JSON object: time (RFC 3339, UTC), level, event, text if there is one, then the fields under their own names."""
    moment = datetime.fromtimestamp(line.time_s, UTC)
    document: dict[str, Scalar] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": line.level,
        "event": clean(line.event),
    }
    if line.text:
        document["text"] = clean(line.text)
    for name, value in line.fields.items():
        if isinstance(value, str):
            value = clean(value)
        elif isinstance(value, float):
            value = round(value, 4)
        document.setdefault(name, value)
    return json.dumps(document, ensure_ascii=True, allow_nan=False) + "\n"


Form = Callable[[Line], str]

FORMS: dict[str, Form] = {"human": human, "journal": journal, "json": json_line}
