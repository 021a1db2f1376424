"""``stretto models``."""

from __future__ import annotations

import click

from stretto.cli.options import with_settings
from stretto.cli.output import print_json, size_text, table
from stretto.settings import LoadedSettings


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@with_settings("models_dir")
@click.pass_context
def models(ctx: click.Context, loaded: LoadedSettings, as_json: bool) -> int:
    """List the models that are installed, and those that can be pulled by name.

    \b
    Examples:
      stretto models
      stretto models --json | jq -r '.installed[].path'
      stretto models rm smollm2
    """
    ctx.obj = loaded
    if ctx.invoked_subcommand is not None:
        return 0
    from stretto.weights.catalogue import CATALOGUE
    from stretto.weights.library import ModelLibrary

    models_dir = loaded.settings.models_dir
    installed = ModelLibrary(models_dir).list()
    names = {model.name for model in installed}
    available = [entry for entry in CATALOGUE if entry.name not in names]
    if as_json:
        print_json(
            {
                "models_dir": str(models_dir),
                "installed": [
                    {
                        "name": model.name,
                        "kind": model.kind,
                        "aliases": list(model.aliases),
                        "path": str(model.path),
                        "reference": model.reference,
                        "sha256": model.sha256,
                        "size_bytes": model.size_bytes,
                        "pulled_at": model.pulled_at.isoformat() if model.pulled_at else None,
                        "damage": model.damage(),
                    }
                    for model in installed
                ],
                "available": [
                    {
                        "name": entry.name,
                        "kind": entry.kind,
                        "reference": entry.source.text,
                        "size_bytes": entry.size_bytes,
                        "licence": entry.licence,
                        "description": entry.description,
                    }
                    for entry in available
                ],
            }
        )
        return 0
    if installed:
        rows = []
        for model in installed:
            pulled = f"{model.pulled_at:%Y-%m-%d}" if model.pulled_at else "-"
            damage = model.damage()
            state = f"damaged: {damage}" if damage else "ok"
            rows.append([model.name, model.kind, size_text(model.size_bytes), pulled, state, model.reference])
        click.echo(table(["INSTALLED", "KIND", "SIZE", "PULLED", "STATE", "FROM"], rows))
    else:
        click.echo(f"No model is installed in {models_dir}.")
    if available:
        click.echo()
        click.echo(
            table(
                ["AVAILABLE", "KIND", "SIZE", "LICENCE", "WHAT IT IS"],
                [[e.name, e.kind, size_text(e.size_bytes), e.licence, e.description] for e in available],
            )
        )
        click.echo(f"\nGet one: stretto pull {available[0].name}")
    return 0


@models.command()
@click.argument("name")
@click.pass_obj
def rm(loaded: LoadedSettings, name: str) -> int:
    """Delete an installed model from the library.

    Files that are used where they lie are not touched. A daemon that serves the model goes on with it.

    \b
    Example:
      stretto models rm smollm2
    """
    from stretto.weights.library import ModelLibrary

    removed = ModelLibrary(loaded.settings.models_dir).remove(name)
    click.echo(f"removed {removed.name} ({size_text(removed.size_bytes)})", err=True)
    return 0
