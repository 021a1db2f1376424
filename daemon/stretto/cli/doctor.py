"""``stretto doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from stretto.cli.checks import Daemon, Finding, platform_finding, run_checks
from stretto.cli.connect import open_client
from stretto.cli.forecast import forecast
from stretto.cli.options import config_option, setting_option
from stretto.cli.output import print_json, terminal_safe
from stretto.errors import SettingsError
from stretto.settings import SETTING_FIELDS, Settings, load_settings
from stretto.settings.load import FlagValue

_OPTIONS = (
    "model", "backend", "device", "dtype", "max_context", "kv_cache_gb", "kv_dtype", "max_batch", "host", "port", "socket", "state_dir", "models_dir",
)  # fmt: skip
_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def find_daemon(settings: Settings) -> Daemon:
    """Ask at the socket."""
    from clientlib import ClientError, DaemonNotRunning

    try:
        with open_client(settings) as client:
            health = client.health()
    except DaemonNotRunning:
        return Daemon("absent", f"none is running at {settings.socket}")
    except ClientError as error:
        return Daemon("unreachable", f"{settings.socket}: {error}")
    return Daemon("running", f"one is running at {settings.socket}, {health.state}")


@click.command(
    params=[*(setting_option(field) for field in SETTING_FIELDS if field.name in _OPTIONS), config_option()],
)
@click.argument("named", metavar="[MODEL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Findings as one JSON object.")
def doctor(named: str | None, as_json: bool, config: Path | None, **flags: FlagValue) -> int:
    """Look at this machine: can it serve MODEL (or the one that is set), and what is missing?

    It says which backend computes the model and why, what memory that needs, how long a context fits, and what would be faster.
    It reads settings, the installed models and the socket; starts and loads nothing. Exit status 1 if something prevents serving.

    \b
    Examples:
      stretto doctor
      stretto doctor ./some-model.gguf --device cuda
      stretto doctor --json | jq '.findings[] | select(.state != "ok")'
    """
    findings: list[Finding] = []
    if named is not None:
        if flags.get("model") is not None:
            raise click.UsageError("The model is named twice: as MODEL and with --model.")
        flags["model"] = named
    try:
        loaded = load_settings(flags, config=config)
        settings = loaded.settings
        where = str(loaded.config_path) if loaded.config_path is not None else "no file"
        findings.append(Finding("settings", "ok", f"valid ({where})"))
        findings += [Finding("settings", "note", warning) for warning in loaded.warnings]
    except SettingsError as error:
        # The rest is looked at with the defaults, so that one fault does not hide another.
        settings = Settings()
        findings.append(Finding("settings", "fail", error.message, error.remedy))
    unsupported = platform_finding()
    if unsupported is not None:
        findings.append(unsupported)
    findings += run_checks(settings, find_daemon(settings))
    coming, needs = forecast(settings)
    findings += coming
    can_serve = all(finding.state != "fail" for finding in findings)
    if as_json:
        print_json(
            {
                "can_serve": can_serve,
                "needs": None if needs is None else needs.as_json(),
                "findings": [
                    {"name": f.name, "state": f.state, "detail": f.detail, "remedy": f.remedy}
                    for f in findings
                ],
            }
        )
        return 0 if can_serve else 1
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        click.echo(f"{_MARKS[finding.state]}  {finding.name.ljust(width)}  {terminal_safe(finding.detail)}")
        if finding.remedy and finding.state != "ok":
            click.echo(f"{'':<{width + 8}}{terminal_safe(finding.remedy)}")
    click.echo("This machine can serve." if can_serve else "Something prevents serving; see FAIL above.")
    return 0 if can_serve else 1
