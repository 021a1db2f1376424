"""What commands write: tables, sizes, JSON, errors, and text that is safe to show on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TextIO

import click

# Model text may hold anything that its prompt made it say: escape sequences must not reach a terminal.
_KEPT_CONTROLS = frozenset("\n\t")


def terminal_safe(text: str) -> str:
    """Text with its control characters made visible (``ESC`` becomes ``\\x1b``), line feeds and tabs kept. No state is kept
    between calls, so pieces of a stream can be passed one by one."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in _KEPT_CONTROLS or not _is_control(char)
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def _is_control(char: str) -> bool:
    code = ord(char)
    return (
        code < 0x20
        or 0x7F <= code < 0xA0
        or char in "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


def is_unicode(text: str) -> bool:
    """Whether text can be sent: bytes that were not UTF-8 come from the command line as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def write_text(text: str, stream: TextIO | None = None) -> None:
    """Write a piece of an answer at once: as it is to a file or a pipe, made safe to a terminal."""
    out = sys.stdout if stream is None else stream
    out.write(terminal_safe(text) if out.isatty() else text)
    out.flush()


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_error(message: str, remedy: str | None = None) -> None:
    """One or two plain lines on stderr."""
    click.echo(f"error: {terminal_safe(message)}", err=True)
    if remedy:
        click.echo(f"       {terminal_safe(remedy)}", err=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    cells = [list(header), *([terminal_safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def size_text(size_bytes: float) -> str:
    """Bytes in decimal units: ``98.4 MB``."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
