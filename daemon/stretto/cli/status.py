"""``stretto status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import duration_text, print_json, size_text, table, terminal_safe
from stretto.settings import LoadedSettings

_REQUEST_COLUMNS = ("id", "phase", "priority", "prompt_tokens", "completion_tokens", "max_tokens", "age_s")


def value_text(name: str, value: object) -> str:
    """A value of the status, by the unit in its name."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name == "pid":  # to be copied into other commands
            return str(value)
        if "bytes" in name.split("_") and "per" not in name.split("_"):
            return size_text(value)
        if name.endswith("_s") and not name.endswith("_per_s"):
            return duration_text(value)
        return f"{value:g}" if isinstance(value, float) else f"{value:,}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)


def status_lines(status: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Nested objects as indented lines of name and value."""
    plain = {name: value for name, value in status.items() if not isinstance(value, Mapping)}
    width = max((len(name) for name in plain), default=0)
    for name, value in plain.items():
        yield terminal_safe(f"{indent}{name.ljust(width)}  {value_text(name, value)}")
    for name, value in status.items():
        if isinstance(value, Mapping):
            yield terminal_safe(f"{indent}{name}")
            yield from status_lines(value, indent + "  ")


def request_table(requests: Sequence[Mapping[str, object]]) -> str:
    """Live requests, one a line."""
    header = [name.removesuffix("_tokens").removesuffix("_s").upper() for name in _REQUEST_COLUMNS]
    return table(
        header, [[value_text(name, request.get(name)) for name in _REQUEST_COLUMNS] for request in requests]
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, as the daemon gives it.")
@with_settings("socket")
def status(loaded: LoadedSettings, as_json: bool) -> int:
    """Show what the daemon is doing: model, memory, queue, and each live request.

    \b
    Examples:
      stretto status
      stretto status --json | jq .status.engine
    """
    with open_client(loaded.settings) as client:
        current = client.status()
        requests = client.requests()
    if as_json:
        print_json({"status": current, "requests": requests})
        return 0
    click.echo("\n".join(status_lines(current)))
    if requests:
        click.echo()
        click.echo(request_table(requests))
    return 0
