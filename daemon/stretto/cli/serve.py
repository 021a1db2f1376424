"""``stretto serve``."""

from __future__ import annotations

import gc
from itertools import groupby

import click

from stretto.cli.options import with_settings
from stretto.cli.output import terminal_safe
from stretto.settings import SETTING_FIELDS, LoadedSettings
from stretto.settings.render import print_settings


class ServeCommand(click.Command):
    """Its help shows the options under the headings of the table of settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, grouped."""
        by_name = {param.name: param for param in self.get_params(ctx)}
        for group, fields in groupby(SETTING_FIELDS, key=lambda field: field.spec.group):
            records = [by_name.pop(field.name).get_help_record(ctx) for field in fields]
            with formatter.section(group):
                formatter.write_dl([record for record in records if record is not None])
        records = [param.get_help_record(ctx) for param in by_name.values()]
        with formatter.section("Other"):
            formatter.write_dl([record for record in records if record is not None])


@click.command(cls=ServeCommand)
@with_settings(serving=True)
@click.option(
    "--print-settings",
    "printing",
    is_flag=True,
    help="Print the effective settings with their sources, and exit.",
)
def serve(loaded: LoadedSettings, printing: bool) -> int:
    """Load the model and serve it until told to stop.

    Prints one line on stdout when it is ready; the log goes to stderr. Ctrl-C or SIGTERM drains: running answers get their grace,
    a second signal stops at once.

    \b
    Examples:
      stretto serve                              the default model on 127.0.0.1:8080
      stretto serve --model ./some-model.gguf    a file of yours
      stretto serve --port 0                     any free port; the ready line says which
      stretto serve --host 0.0.0.0 --api-key-file ~/.config/stretto/key
      stretto serve --print-settings > stretto.toml
    """
    if printing:
        click.echo(print_settings(loaded), nl=False)
        return 0
    for warning in loaded.warnings:
        click.echo(f"warning: {terminal_safe(warning)}", err=True)
    # Starting makes next to no garbage, and looking for it takes a twentieth of the time. The daemon collects once it is ready.
    gc.disable()
    from stretto.daemon import run

    return run(loaded.settings)
