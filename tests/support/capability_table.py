"""The table of the shared suite, backend by capability: measured by ``PYTHONPATH=tests python -m support.capability_table``, or as declared.

A cell is ``ok`` when the test ran green, the reason when it was skipped, ``FAILED`` when it failed. What stands in the documentation is
what has to hold everywhere: green, but for what ``EXCUSED`` gives a reason for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[1] / "backends" / "shared" / "test_capabilities.py"
Cells = Mapping[tuple[str, str], str]
"""By backend and capability."""


def capabilities() -> list[str]:
    """What the suite asks of each backend, in its order: its tests that take a model."""
    return re.findall(r"^def test_(\w+)\(model: Model\)", SUITE.read_text(), flags=re.MULTILINE)


def markdown(cells: Cells, backends: Sequence[str]) -> str:
    """The table; a reason becomes a note below it."""
    notes: list[str] = []

    def shown(cell: str) -> str:
        if cell in ("ok", "FAILED"):
            return cell
        if cell not in notes:
            notes.append(cell)
        return f"no ({notes.index(cell) + 1})"

    rows = [
        [name.replace("_", " "), *(shown(cells[backend, name]) for backend in backends)]
        for name in capabilities()
        if all((backend, name) in cells for backend in backends)
    ]
    lines = [["capability", *backends], ["---"] * (len(backends) + 1), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "".join(f"\n{number}. {note}" for number, note in enumerate(notes, 1))


def declared() -> str:
    """What has to hold on a machine that has every backend."""
    from support.shared_backends import BACKENDS, EXCUSED

    cells = {
        (backend, name): EXCUSED.get((backend, name), "ok") for backend in BACKENDS for name in capabilities()
    }
    return markdown(cells, BACKENDS)


class Measured:
    """A plugin that notes how the suite's tests ended."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = re.search(r"test_capabilities\.py::test_(\w+)\[(.+)\]$", report.nodeid)
        if found is None:
            return
        where = found[2], found[1]
        if report.skipped and isinstance(report.longrepr, tuple):
            self.cells[where] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            self.cells[where] = "FAILED"
        elif report.when == "call":
            self.cells.setdefault(where, "ok")

    def backends(self, known: Iterable[str]) -> list[str]:
        """Those of which there is something to tell."""
        return [backend for backend in known if any(backend == name for name, _ in self.cells)]


def main() -> int:
    """Run the suite and print the table; the status is pytest's."""
    from support.shared_backends import BACKENDS

    measured = Measured()
    status = pytest.main(["-q", "--no-header", str(SUITE)], plugins=[measured])
    sys.stdout.write("\n" + markdown(measured.cells, measured.backends(BACKENDS)) + "\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
