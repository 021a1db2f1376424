"""``stretto memory``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import print_error, print_json, table
from stretto.settings import LoadedSettings

_SHOWN_CHARS = 60
_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON, whole and uncut.")
_session = click.option(
    "--session", default="default", show_default=True, metavar="NAME", help="The session that is meant."
)
_tenant = click.option(
    "--tenant", default="", metavar="NAME", help="Whose session; only where callers have keys of their own."
)


@click.group()
@with_settings("socket")
@click.pass_context
def memory(ctx: click.Context, loaded: LoadedSettings) -> int:
    """Look at what the daemon remembers, pin notes, and forget.

    \b
    Examples:
      stretto memory list
      stretto memory add "The user is called Ada."
      stretto memory forget mem_0123456789abcdef
    """
    ctx.obj = loaded
    return 0


@memory.command()
@_as_json
@click.pass_obj
def sessions(loaded: LoadedSettings, as_json: bool) -> int:
    """List the sessions, of all tenants."""
    with open_client(loaded.settings) as client:
        found = client.admin.memory_sessions()
    if as_json:
        print_json(found)
        return 0
    rows = [
        [
            str(each.get("session")),
            str(each.get("tenant") or "-"),
            str(each.get("notes")),
            str(each.get("exchanges")),
            _date(each),
        ]
        for each in found
    ]
    click.echo(table(["SESSION", "TENANT", "NOTES", "EXCHANGES", "SINCE"], rows))
    return 0


@memory.command(name="list")
@_session
@_tenant
@_as_json
@click.pass_obj
def list_entries(loaded: LoadedSettings, session: str, tenant: str, as_json: bool) -> int:
    """List what a session remembers, oldest first.

    A note marked with * has no room in the context beside newer ones.

    \b
    Examples:
      stretto memory list
      stretto memory list --session work --json | jq -r '.[].text'
    """
    with open_client(loaded.settings) as client:
        entries = client.admin.memory(session, tenant=tenant)
    if as_json:
        print_json(entries)
        return 0
    click.echo(table(["ID", "KIND", "CREATED", "TEXT"], [_row(entry) for entry in entries]))
    return 0


@memory.command()
@click.argument("text")
@_session
@_tenant
@_as_json
@click.pass_obj
def add(loaded: LoadedSettings, text: str, session: str, tenant: str, as_json: bool) -> int:
    """Pin a note to a session: it is in the context of all its later requests. Prints the note's id.

    \b
    Example:
      stretto memory add "Answer in French." --session work
    """
    with open_client(loaded.settings) as client:
        entry = client.admin.add_memory(text, session=session, tenant=tenant)
    if as_json:
        print_json(entry)
    else:
        click.echo(entry.get("id"))
    return 0


@memory.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Forget the whole session.")
@_session
@_tenant
@_as_json
@click.pass_obj
def forget(
    loaded: LoadedSettings,
    ids: tuple[str, ...],
    everything: bool,
    session: str,
    tenant: str,
    as_json: bool,
) -> int:
    """Forget entries of a session, or all of them. The exit status is 1 when one was not there.

    \b
    Examples:
      stretto memory forget mem_0123456789abcdef
      stretto memory forget --all --session work
    """
    if everything == bool(ids):
        raise click.UsageError("Name the entries to forget, or say --all.")
    missing: list[str] = []
    with open_client(loaded.settings) as client:
        if everything:
            deleted = client.admin.forget_session(session, tenant=tenant)
        else:
            for entry_id in ids:
                if not client.admin.forget_memory(entry_id, session=session, tenant=tenant):
                    missing.append(entry_id)
            deleted = len(ids) - len(missing)
    if as_json:
        print_json({"session": session, "deleted": deleted, "missing": missing})
    else:
        click.echo(f"forgot {deleted}", err=True)
        for entry_id in missing:
            print_error(f"the session '{session}' has no memory '{entry_id}'.")
    return 1 if missing else 0


def _row(entry: Mapping[str, object]) -> list[str]:
    if entry.get("kind") == "note":
        text = str(entry.get("text"))
        kind = "note" if entry.get("in_context") else "note *"
    else:
        text = f"{entry.get('user')} → {entry.get('assistant')}"
        kind = str(entry.get("kind"))
    line = " ".join(text.split())
    if len(line) > _SHOWN_CHARS:
        line = line[: _SHOWN_CHARS - 1] + "…"
    return [str(entry.get("id")), kind, _date(entry), line]


def _date(entry: Mapping[str, object]) -> str:
    created = entry.get("created")
    if not isinstance(created, int):
        return "-"
    return f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M}"
