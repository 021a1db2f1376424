"""The table in the documentation is that of the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.capability_table import Measured, capabilities, declared, markdown
from support.shared_backends import BACKENDS

DOCUMENT = Path(__file__).parents[3] / "docs" / "backends.md"


def test_the_documentation_has_the_suites_table() -> None:
    assert {"scheduling", "cancel", "prefix_reuse", "sampling", "grammar", "stop"} <= {*capabilities()}
    text = DOCUMENT.read_text()
    assert declared() in text
    assert all(f"`{backend}`" in text for backend in BACKENDS)


def test_a_table_with_reasons() -> None:
    names = capabilities()
    cells = {(backend, name): "ok" for backend in ("one", "two") for name in names}
    cells["two", names[0]] = cells["two", names[1]] = "it has none"
    cells["one", names[2]] = "FAILED"
    table = markdown(cells, ("one", "two")).splitlines()
    assert table[0] == "| capability | one | two |"
    assert table[2] == f"| {names[0]} | ok | no (1) |"
    assert table[4].endswith("| FAILED | ok |")
    assert table[-1] == "1. it has none"


def test_what_is_measured() -> None:
    def report(outcome: str, when: str, longrepr: object = None, name: str = "stop") -> pytest.TestReport:
        return pytest.TestReport(
            f"tests/backends/shared/test_capabilities.py::test_{name}[mlx]", ("", None, ""), {}, outcome, longrepr, when
        )  # type: ignore[arg-type]  # fmt: skip

    measured = Measured()
    for one in (
        report("passed", "setup"), report("passed", "call"), report("failed", "teardown"),
        report("skipped", "setup", ("f", 1, "Skipped: no MLX"), "cancel"), report("passed", "call", name="grammar"),
    ):  # fmt: skip
        measured.pytest_runtest_logreport(one)
    assert measured.cells == {
        ("mlx", "stop"): "FAILED",
        ("mlx", "cancel"): "no MLX",
        ("mlx", "grammar"): "ok",
    }
    assert measured.backends(BACKENDS) == ["mlx"]
