"""A model for each backend, and the table of what each can do at the end of a run of this suite."""

from __future__ import annotations

import pytest

from support.shared_backends import BACKENDS, Model, make_model, require

MARKS = {"torch": pytest.mark.torch, "mlx": pytest.mark.mlx}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name.partition("-")[0], ())) for name in BACKENDS],
)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shared_models() -> dict[str, Model]:
    """Those that were made so far, by backend."""
    return {}


@pytest.fixture
def model(
    request: pytest.FixtureRequest,
    backend_name: str,
    shared_models: dict[str, Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    require(backend_name, request.function.__name__.removeprefix("test_"))
    if backend_name not in shared_models:
        shared_models[backend_name] = make_model(backend_name, tmp_path_factory.mktemp(backend_name))
    return shared_models[backend_name]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With ``-v``: backend by capability, green or with the reason."""
    if terminalreporter.verbosity < 1:
        return
    cells: dict[tuple[str, str], str] = {}
    for outcome in ("passed", "failed", "skipped", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            if "/backends/shared/test_capabilities.py" not in report.nodeid or "[" not in report.nodeid:
                continue
            capability, _, backend = report.nodeid.rpartition("::test_")[2].rstrip("]").partition("[")
            reason = report.longrepr[2] if outcome == "skipped" else outcome
            cells[backend, capability] = {"passed": "ok", "failed": "FAILED", "error": "FAILED"}.get(
                outcome, str(reason).removeprefix("Skipped: ")
            )
    if not cells:
        return
    terminalreporter.section("capabilities")
    for capability in dict.fromkeys(name for _, name in cells):
        line = ", ".join(
            f"{name}: {cells[name, capability]}" for name in BACKENDS if (name, capability) in cells
        )
        terminalreporter.write_line(f"{capability.ljust(24)} {line}")
