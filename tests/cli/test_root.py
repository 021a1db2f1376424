"""The group: help, exit statuses, and how errors look. Statuses are those of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from stretto import __version__
from stretto.cli import main
from stretto.cli.root import COMMANDS
from stretto.errors import SettingsError, StartupError

Run = Callable[..., Result]


def process(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stretto", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def test_help_lists_every_command_with_its_first_sentence(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, summary in COMMANDS.items():
        assert name in result.stdout
        assert command(name).name == name
        assert command(name).get_short_help_str(limit=300) == summary


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_help_has_examples(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"stretto {name}" in result.stdout


def test_only_the_commands_there_are(run: Run) -> None:
    result = run("nonsense")
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.stderr
    assert run().exit_code == 2


def test_version(run: Run) -> None:
    assert run("version").stdout == run("--version").stdout == f"stretto {__version__}\n"
    assert f'"stretto": "{__version__}"' in run("version", "--json").stdout


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom stretto.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n"
        "    status = end.code\nheavy = {'trio', 'torch', 'numpy', 'clientlib', 'hypercorn', 'starlette', 'jinja2', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)), status, file=sys.stderr)"
    )
    for arguments in (["--help"], ["version"], ["serve", "--help"], ["serve", "--print-settings"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.stderr.strip() == "[] 0", arguments


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["version"], 0, ""),
        (["serve", "--port", "x"], 2, "error: port (flag --port): must be an integer from 0 to 65535"),
        (["serve", "--nonsense"], 2, "No such option"),
        (
            ["serve", "--config", "/nowhere.toml"],
            2,
            "error: config (flag --config): there is no file /nowhere.toml\n",
        ),
        (
            ["serve", "--host", "0.0.0.0"],
            2,
            "       Set STRETTO_API_KEY or --api-key-file, or say --allow-open.\n",
        ),
        (["generate"], 2, "a prompt is needed"),
        (["generate", "--temperature", "3", "x"], 2, "--temperature"),
        (["generate", "x"], 1, "error: No Stretto daemon listens on "),
        (["chat"], 1, "stretto serve"),
        (["status"], 1, "error: No Stretto daemon"),
        (["stop"], 1, "error: No Stretto daemon"),
        (["models", "rm", "nothing"], 1, "error: No model 'nothing' is installed"),
    ],
)
def test_exit_statuses(arguments: list[str], status: int, said: str) -> None:
    done = process(*arguments)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if status:
        assert done.stdout == ""


def test_a_wrong_variable_and_a_wrong_file_are_refused_by_every_command(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("STRETTO_PROT", "1")
    for arguments in (["serve"], ["status"], ["models"], ["pull"], ["stop"], ["generate", "x"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "did you mean STRETTO_PORT?" in result.stderr


def test_output_that_nobody_reads_is_no_reason_to_complain() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stretto", "serve", "--print-settings"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (StartupError("No model.", remedy="Get one."), 1, "error: No model.\n       Get one.\n"),
        (SettingsError("Wrong."), 2, "error: Wrong.\n"),
        (
            FileNotFoundError(2, "No such file or directory", "/x\x1b[2J"),
            1,
            "error: /x\\x1b[2J: No such file or directory\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_plain_lines(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    def broken(_: object) -> int:
        raise error

    monkeypatch.setattr("stretto.daemon.run", broken)
    result = run("serve")
    assert result.exit_code == status
    assert result.stderr.strip("\n") == said.strip("\n")


def test_a_bug_is_not_dressed_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("stretto.daemon.run", broken)
    with pytest.raises(ZeroDivisionError):
        run("serve")


def test_serve_hands_over_checked_settings_and_passes_the_status_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def fake(settings: object) -> int:
        seen.append(settings)
        return 7

    monkeypatch.setattr("stretto.daemon.run", fake)
    result = run(
        "serve",
        "--port",
        "0",
        "--allowed-hosts",
        "a.example",
        "--allowed-hosts",
        "b.example",
        "--host",
        "0.0.0.0",
        "--allow-open",
    )
    assert result.exit_code == 7
    assert result.stderr.startswith("warning: listening on 0.0.0.0 without an API key")
    (settings,) = seen
    assert (settings.port, settings.allowed_hosts, settings.allow_open) == (
        0,
        ("a.example", "b.example"),
        True,
    )


def test_print_settings_starts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_API_KEY", "sesame")
    result = run("serve", "--print-settings", "--max-batch", "3")
    assert result.exit_code == 0
    assert "max_batch = 3  # flag --max-batch" in result.stdout
    assert "sesame" not in result.stdout + result.stderr


def test_serve_help_has_every_setting(run: Run) -> None:
    from stretto.settings import SETTING_FIELDS

    text = run("serve", "--help").stdout
    words = " ".join(text.split())
    for field in SETTING_FIELDS:
        assert f"{field.flag} " in words or f"{field.flag}\n" in text
        assert f"[{field.env};" in words
