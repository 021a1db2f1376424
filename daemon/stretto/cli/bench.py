"""``stretto bench``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from stretto.cli.options import with_settings
from stretto.cli.output import print_error, table
from stretto.errors import SettingsError
from stretto.settings import LoadedSettings

_NAMES = "decode, decode-1000, streams-8, streams-16, prefill-512, prefill-2048, turns, stall, mixed, restart"


@click.command()
@click.option(
    "--url", metavar="URL", help="The server to measure.  [default: where the settings say it listens]"
)
@click.option(
    "--start", metavar="COMMAND", help="Start it with this command, and measure start and memory too."
)
@click.option(
    "--against", "others", multiple=True, metavar="[NAME=]URL", help="Another server, for the same work."
)
@click.option(
    "--against-start",
    "commands",
    multiple=True,
    metavar="[NAME=]COMMAND",
    help="Start that one with this command.",
)
@click.option("--work", "wanted", multiple=True, metavar="NAME", help=f"Only this work: {_NAMES}.")
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often each work counts."
)
@click.option(
    "--warm-ups",
    type=click.IntRange(0, 9),
    default=1,
    show_default=True,
    help="How often each work is done before, uncounted.",
)
@click.option("--seed", default="1", show_default=True, help="Decides all texts.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write everything to a file; - is stdout.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the ratios: a .png or .svg file.",
)
@with_settings("host", "port")
def bench(
    loaded: LoadedSettings,
    url: str | None,
    start: str | None,
    others: tuple[str, ...],
    commands: tuple[str, ...],
    wanted: tuple[str, ...],
    rounds: int,
    warm_ups: int,
    seed: str,
    json_path: Path | None,
    plot_path: Path | None,
) -> int:
    """Measure the daemon, alone or side by side with other OpenAI-compatible servers.

    Every server gets the same prompts and the same number of new tokens, in turns; what counts is the median of the rounds. How it
    measures is told in docs/bench.md.

    \b
    Examples:
      stretto bench --work decode --rounds 3
      stretto bench --against peer=http://127.0.0.1:8081 --json result.json --plot result.svg
      stretto bench --url http://127.0.0.1:9000 --start "stretto serve --port 9000"
    """
    import trio

    try:
        from stretto.bench import WORKS, Plan, ServerPlan, document, draw, measure, table_rows
    except ImportError as error:
        raise SettingsError(
            f"The benchmark needs {error.name}, which is not installed.",
            code="backend_unavailable",
            remedy="pip install 'stretto[bench]'",
        ) from error
    known = {work.name: work for work in WORKS}
    for name in wanted:
        if name not in known:
            raise click.BadParameter(f"'{name}' is none of: {', '.join(known)}.", param_hint="--work")
    settings = loaded.settings
    servers = [ServerPlan("stretto", url or f"http://{settings.host}:{settings.port}", start)]
    starts = dict(_named(command, number) for number, command in enumerate(commands, 1))
    for number, other in enumerate(others, 1):
        name, address = _named(other, number)
        servers.append(ServerPlan(name, address.rstrip("/").removesuffix("/v1"), starts.pop(name, None)))
    if starts:
        raise click.BadParameter(
            f"no --against has the name '{next(iter(starts))}'.", param_hint="--against-start"
        )
    if len({server.name for server in servers}) < len(servers):
        raise click.BadParameter("two servers have one name; write NAME=URL.", param_hint="--against")
    startable = all(server.command is not None for server in servers)
    for name in wanted:
        if known[name].restarts and not startable:
            raise click.BadParameter(
                f"'{name}' starts the servers again, so give --start, and --against-start for each other one.",
                param_hint="--work",
            )
    works = [known[name] for name in wanted] or [work for work in WORKS if startable or not work.restarts]
    plan = Plan(servers=servers, works=works, rounds=rounds, seed=seed, warm_ups=warm_ups)
    results, models = trio.run(partial(measure, plan, tell=_tell))
    names = [server.name for server in servers]
    if str(json_path) != "-":
        click.echo(table(*table_rows(results, names)))
    for note in results.notes:
        _tell(f"note: {note}")
    for failure in results.failures:
        print_error(failure)
    if json_path is not None:
        text = json.dumps(document(results, names, rounds=rounds, warm_ups=warm_ups, models=models), indent=2)
        if str(json_path) == "-":
            click.echo(text)
        else:
            json_path.write_text(text + "\n", "utf-8")
    if plot_path is not None:
        draw(results, names, plot_path)
    return 1 if results.failures else 0


def _named(text: str, number: int) -> tuple[str, str]:
    """``NAME=REST``; a text without a name is that of the ``number``-th peer."""
    name, equals, rest = text.partition("=")
    if equals and name.replace("-", "").replace("_", "").isalnum():
        return name, rest
    return f"peer{number}", text


def _tell(text: str) -> None:
    """One line of progress; it is no result, so it goes to stderr."""
    click.echo(text, err=True)
