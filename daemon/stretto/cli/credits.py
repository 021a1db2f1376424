"""``stretto credits``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import print_json, table, terminal_safe
from stretto.settings import LoadedSettings

_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON, as the daemon gives it.")
_key = click.argument("key", metavar="KEY")
_note = click.option("--note", default="", metavar="TEXT", help="Kept with the entry.")
_idempotency_key = click.option(
    "--idempotency-key",
    metavar="TEXT",
    help="Saying it again with the same one does it once, e.g. the number of a payment.  [default: a new one each time]",
)


@click.group()
@with_settings("socket")
@click.pass_context
def credits(ctx: click.Context, loaded: LoadedSettings) -> int:  # noqa: A001  (the command's name)
    """Look after the credit ledger: keys, what they have, and what they paid.

    For a daemon that was started with --provider-config. KEY is a key's id, which begins with key_; amounts are US dollars.

    \b
    Examples:
      stretto credits list
      stretto credits create --label Alice --balance 5
      stretto credits topup key_0123456789abcdef01234567 20 --idempotency-key invoice-17
    """
    ctx.obj = loaded
    return 0


@credits.command(name="list")
@_as_json
@click.pass_obj
def list_keys(loaded: LoadedSettings, as_json: bool) -> int:
    """List all keys, in the order in which they were made.

    \b
    Example:
      stretto credits list --json | jq -r '.[] | select(.available == "0.00").id'
    """
    with open_client(loaded.settings) as client:
        keys = client.admin.credits.list()
    if as_json:
        print_json(keys)
        return 0
    rows = [
        [
            _text(key, "id"),
            _text(key, "label"),
            _text(key, "available"),
            _text(key, "held"),
            _text(key, "spent"),
            _text(key, "plan"),
            _state(key),
        ]
        for key in keys
    ]
    header = ["ID", "LABEL", "AVAILABLE", "HELD", "SPENT", "PLAN", "STATE"]
    click.echo(table(header, _aligned(rows, (2, 3, 4))))
    return 0


@credits.command()
@_key
@_as_json
@click.pass_obj
def show(loaded: LoadedSettings, key: str, as_json: bool) -> int:
    """Show one key.

    \b
    Example:
      stretto credits show key_0123456789abcdef01234567
    """
    with open_client(loaded.settings) as client:
        found = client.admin.credits.show(key)
    _print_key(found, as_json)
    return 0


@credits.command()
@click.option("--label", default="", metavar="TEXT", help="For people; shown in lists.")
@click.option("--balance", default="0", metavar="USD", help="What it begins with.", show_default=True)
@click.option("--plan", metavar="NAME", help="Whose prices it pays.  [default: those of the list]")
@_idempotency_key
@_as_json
@click.pass_obj
def create(
    loaded: LoadedSettings,
    label: str,
    balance: str,
    plan: str | None,
    idempotency_key: str | None,
    as_json: bool,
) -> int:
    """Make a key, and print it. It is shown this once; the daemon keeps only its hash.

    \b
    Examples:
      stretto credits create --label Alice --balance 5
      stretto credits create --label "Bob's laptop" --plan partner --json | jq -r .key
    """
    with open_client(loaded.settings) as client:
        made = client.admin.credits.create(
            label=label, plan=plan, balance=balance, idempotency_key=idempotency_key
        )
    if as_json:
        print_json(made)
        return 0
    if made.get("key") is None:
        click.echo(f"{_text(made, 'id')} was made before, and its key is not known here", err=True)
        return 0
    click.echo(made["key"])
    click.echo(
        f"made {_text(made, 'id')} with ${_text(made, 'available')}; the key is not shown again", err=True
    )
    return 0


@credits.command()
@_key
@click.argument("amount", metavar="USD")
@_idempotency_key
@_note
@_as_json
@click.pass_obj
def topup(
    loaded: LoadedSettings, key: str, amount: str, idempotency_key: str | None, note: str, as_json: bool
) -> int:
    """Give a key more.

    \b
    Example:
      stretto credits topup key_0123456789abcdef01234567 20 --idempotency-key invoice-17
    """
    with open_client(loaded.settings) as client:
        given = client.admin.credits.topup(key, amount, idempotency_key=idempotency_key, note=note)
    _print_given(given, as_json)
    return 0


@credits.command(context_settings={"ignore_unknown_options": True})
@_key
@click.argument("amount", metavar="USD")
@_idempotency_key
@_note
@_as_json
@click.pass_obj
def adjust(
    loaded: LoadedSettings, key: str, amount: str, idempotency_key: str | None, note: str, as_json: bool
) -> int:
    """Correct what a key has: up, or with a minus down, but never below zero.

    \b
    Examples:
      stretto credits adjust key_0123456789abcdef01234567 -2.50 --note "paid back"
      stretto credits adjust key_0123456789abcdef01234567 0.10 --note "for the outage"
    """
    with open_client(loaded.settings) as client:
        given = client.admin.credits.adjust(key, amount, idempotency_key=idempotency_key, note=note)
    _print_given(given, as_json)
    return 0


@credits.command()
@_key
@_as_json
@click.pass_obj
def revoke(loaded: LoadedSettings, key: str, as_json: bool) -> int:
    """Refuse a key from now on. Requests that run go on; what the key has stays in the books.

    \b
    Example:
      stretto credits revoke key_0123456789abcdef01234567
    """
    with open_client(loaded.settings) as client:
        revoked = client.admin.credits.revoke(key)
    _print_key(revoked, as_json)
    return 0


@credits.command()
@_key
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Entries of a page."
)
@click.option("--before", type=click.IntRange(1), metavar="ENTRY", help="Older ones than this entry.")
@click.option("--holds", is_flag=True, help="Also what was held for requests and released.")
@_as_json
@click.pass_obj
def ledger(
    loaded: LoadedSettings, key: str, limit: int, before: int | None, holds: bool, as_json: bool
) -> int:
    """List a key's entries, the newest first.

    \b
    Examples:
      stretto credits ledger key_0123456789abcdef01234567
      stretto credits ledger key_0123456789abcdef01234567 --before 1200 --json
    """
    with open_client(loaded.settings) as client:
        page = client.admin.credits.ledger(key, limit=limit, before=before, holds=holds)
    if as_json:
        print_json(page)
        return 0
    rows = [_entry_row(entry) for entry in page.get("data", [])]
    header = ["ENTRY", "AT", "KIND", "AMOUNT", "CREDIT", "TOKENS", "FOR"]
    click.echo(table(header, _aligned(rows, (0, 3, 4, 5))))
    if page.get("next_before") is not None:
        click.echo(f"older ones: --before {page['next_before']}", err=True)
    return 0


def _entry_row(entry: Mapping[str, Any]) -> list[str]:
    request = entry.get("request") or {}
    tokens = "-"
    if request.get("prompt_tokens") is not None:
        tokens = f"{request['prompt_tokens']:,} + {request['completion_tokens']:,}"
    reason = f"{request['id']} ({request.get('ended') or 'runs'})" if request else _text(entry, "note")
    return [
        _text(entry, "id"),
        _time(entry.get("at")),
        _text(entry, "kind"),
        _text(entry, "amount"),
        _text(entry, "credit_after"),
        tokens,
        reason,
    ]


def _print_key(key: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    lines = {
        "id": _text(key, "id"),
        "label": _text(key, "label"),
        "key": _text(key, "hint"),
        "plan": _text(key, "plan"),
        "state": _state(key),
        "available": f"${_text(key, 'available')}",
        "held": f"${_text(key, 'held')}",
        "spent": f"${_text(key, 'spent')} of ${_text(key, 'given')}",
        "made": f"{_time(key.get('created_at'))} ({'provider file' if key.get('source') == 'file' else 'by hand'})",
    }
    width = max(map(len, lines))
    click.echo("\n".join(terminal_safe(f"{name.ljust(width)}  {value}") for name, value in lines.items()))


def _print_given(given: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(given)
        return
    key = given.get("key", {})
    done = "was done before" if given.get("replayed") else "done"
    click.echo(f"{done}, entry {given.get('entry')}: {_text(key, 'id')} has ${_text(key, 'available')}")


def _aligned(rows: list[list[str]], columns: tuple[int, ...]) -> list[list[str]]:
    """Numbers with their decimal points below each other."""
    for column in columns:
        wholes = [row[column].partition(".")[0] for row in rows]
        widest = max((len(whole) for whole in wholes), default=0)
        for row, whole in zip(rows, wholes, strict=True):
            row[column] = " " * (widest - len(whole)) + row[column]
    return rows


def _state(key: Mapping[str, Any]) -> str:
    return "good" if key.get("revoked_at") is None else f"revoked {_time(key['revoked_at'])}"


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return "-" if value is None or value == "" else str(value)


def _time(text: object) -> str:
    """``2026-01-31 12:05``, in UTC, of what the daemon writes."""
    return str(text)[:16].replace("T", " ") if text else "-"
