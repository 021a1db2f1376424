"""``stretto cache``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import print_json, table, terminal_safe
from stretto.cli.status import status_lines
from stretto.settings import LoadedSettings

_SHOWN_CHARS = 60
_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON, whole and uncut.")
_tenant = click.option(
    "--tenant", metavar="NAME", help="One tenant's only; where callers have keys of their own."
)


@click.group()
@with_settings("socket")
@click.pass_context
def cache(ctx: click.Context, loaded: LoadedSettings) -> int:
    """Look at the answers that the daemon keeps, and forget them.

    \b
    Examples:
      stretto cache stats
      stretto cache inspect
      stretto cache clear
    """
    ctx.obj = loaded
    return 0


@cache.command()
@_as_json
@click.pass_obj
def stats(loaded: LoadedSettings, as_json: bool) -> int:
    """Show how many answers are kept, how often they were given again, and why they were not.

    \b
    Example:
      stretto cache stats --json | jq .semantic_hits
    """
    with open_client(loaded.settings) as client:
        found = client.admin.cache_stats()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(status_lines(found)))
    return 0


@cache.command()
@_tenant
@_as_json
@click.pass_obj
def clear(loaded: LoadedSettings, tenant: str | None, as_json: bool) -> int:
    """Forget all answers.

    \b
    Examples:
      stretto cache clear
      stretto cache clear --tenant shop
    """
    with open_client(loaded.settings) as client:
        deleted = client.admin.clear_cache(tenant=tenant)
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(f"forgot {deleted}", err=True)
    return 0


@cache.command()
@click.argument("entry_id", type=click.IntRange(1), required=False, metavar="[ID]")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Most entries to list."
)
@_tenant
@_as_json
@click.pass_obj
def inspect(
    loaded: LoadedSettings, entry_id: int | None, limit: int, tenant: str | None, as_json: bool
) -> int:
    """List the newest questions that were answered; with an ID, show that one with its answer.

    HITS counts how often the answer was given again since the daemon's start.

    \b
    Examples:
      stretto cache inspect --limit 100
      stretto cache inspect 17
    """
    with open_client(loaded.settings) as client:
        if entry_id is not None:
            entry = client.admin.cache_entry(entry_id)
            print_json(entry) if as_json else _show(entry)
            return 0
        entries = client.admin.cache_entries(limit=limit, tenant=tenant)
    if as_json:
        print_json(entries)
        return 0
    click.echo(
        table(["ID", "CREATED", "HITS", "TOKENS", "TENANT", "QUESTION"], [_row(entry) for entry in entries])
    )
    return 0


def _show(entry: Mapping[str, object]) -> None:
    facts = {
        name: value
        for name, value in entry.items()
        if name not in ("object", "question", "answer", "created")
    }
    click.echo("\n".join(status_lines({**facts, "created": _date(entry)})))
    for name in ("question", "answer"):
        click.echo(f"\n{name}:\n{terminal_safe(str(entry.get(name)))}")


def _row(entry: Mapping[str, object]) -> list[str]:
    line = " ".join(str(entry.get("question")).split())
    if len(line) > _SHOWN_CHARS:
        line = line[: _SHOWN_CHARS - 1] + "…"
    return [
        str(entry.get("id")),
        _date(entry),
        str(entry.get("hits")),
        str(entry.get("completion_tokens")),
        str(entry.get("tenant") or "-"),
        line,
    ]


def _date(entry: Mapping[str, object]) -> str:
    created = entry.get("created")
    if not isinstance(created, int):
        return "-"
    return f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M}"
