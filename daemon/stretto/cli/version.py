"""``stretto version``."""

from __future__ import annotations

import platform

import click

from stretto._version import __version__
from stretto.cli.output import print_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Versions as one JSON object.")
def version(as_json: bool) -> int:
    """Print the version.

    \b
    Examples:
      stretto version
      stretto version --json | jq -r .python
    """
    if as_json:
        print_json(
            {"stretto": __version__, "python": platform.python_version(), "platform": platform.platform()}
        )
    else:
        click.echo(f"stretto {__version__}")
    return 0
