"""Results as a table for people, as JSON for programs, and as a picture."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stretto._version import __version__
from stretto.bench.rounds import Results, Row
from stretto.errors import SettingsError


def table_rows(results: Results, targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: medians, and how many times better the first target is than each other one."""
    first, others = targets[0], targets[1:]
    header = ["WORK", "FIGURE", *targets, *(f"vs {other}" for other in others)]
    rows = [
        [
            row.work,
            f"{row.figure} ({row.unit})",
            *(_value(row.median(target)) for target in targets),
            *(_ratio(row.ratio(first, other)) for other in others),
        ]
        for row in results.rows
    ]
    return header, rows


def document(
    results: Results,
    targets: Sequence[str],
    *,
    rounds: int,
    warm_ups: int,
    models: dict[str, str],
    at: datetime | None = None,
) -> dict[str, Any]:
    """Everything as plain JSON values, the values of each round among them."""
    first, others = targets[0], targets[1:]
    return {
        "stretto": __version__,
        "at": (at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": processor_name(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "rounds": rounds,
        "warm_ups": warm_ups,
        "models": models,
        "rows": [
            {
                "work": row.work,
                "figure": row.figure,
                "unit": row.unit,
                "better": row.better,
                "medians": {target: row.median(target) for target in targets},
                "values": row.values,
                "ratios": {other: row.ratio(first, other) for other in others},
            }
            for row in results.rows
        ],
        "notes": results.notes,
        "failures": results.failures,
    }


def processor_name() -> str:
    """The processor as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def draw(results: Results, targets: Sequence[str], path: Path) -> None:
    """Write a picture (PNG or SVG, by the path's ending): how many times better the first target is than each other one, or the
    medians when it is alone.

    Raises:
        SettingsError: matplotlib is not installed, or does not know the ending.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise SettingsError(
            "A picture needs matplotlib, which is not installed.",
            code="backend_unavailable",
            remedy="pip install 'stretto[bench]'",
        ) from error
    first, others = targets[0], targets[1:]
    labels = [f"{row.work}: {row.figure}" for row in results.rows]
    canvas = Canvas(figsize=(9, 1.2 + 0.42 * len(labels) * max(1, len(others))), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    heights = [(other, [_number(row, first, other) for row in results.rows]) for other in others or [first]]
    bar = 0.8 / len(heights)
    for place, (other, values) in enumerate(heights):
        positions = [index + place * bar for index in range(len(labels))]
        axes.barh(positions, values, height=bar, label=other)
        for position, value in zip(positions, values, strict=True):
            axes.text(value, position, f" {value:.3g}", va="center")
    axes.set_yticks([index + 0.4 - bar / 2 for index in range(len(labels))], labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    if others:
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel(f"times better: {first} against the named server (medians)")
    else:
        axes.set_xlabel(f"{first}: medians, each in its own unit")
    axes.legend()
    try:
        canvas.savefig(path)
    except ValueError as error:
        raise SettingsError(f"A picture cannot be written as '{path.name}': {error}", param="plot") from error


def _number(row: Row, first: str, other: str) -> float:
    return (row.median(first) if other == first else row.ratio(first, other)) or 0.0


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
