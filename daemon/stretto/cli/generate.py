"""``stretto generate``."""

from __future__ import annotations

import sys
from typing import Any

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import is_unicode
from stretto.cli.sampling import footer, sampling_options
from stretto.cli.streaming import stream_answer
from stretto.settings import LoadedSettings


def read_prompt(argument: str | None) -> str:
    """The argument, then what is piped in.

    Raises:
        click.UsageError: there is neither, or the input is not UTF-8.
    """
    if argument is not None and not is_unicode(argument):
        raise click.UsageError("the prompt is not valid text in UTF-8")
    parts = [] if argument is None else [argument]
    if not sys.stdin.isatty():
        try:
            piped = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"standard input is not UTF-8 (byte {error.start})") from None
        if piped.strip():
            parts.append(piped)
    prompt = "\n\n".join(parts)
    if not prompt.strip():
        raise click.UsageError(
            'a prompt is needed: as an argument, or on standard input; e.g. stretto generate "Hi"'
        )
    return prompt


@click.command()
@click.argument("prompt", required=False)
@sampling_options
@click.option(
    "--stop",
    "stop_texts",
    multiple=True,
    metavar="TEXT",
    help="End the answer where this would come; can be repeated.",
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "background"]),
    help="Background work yields to what others wait for.  [default: normal]",
)
@with_settings("socket")
def generate(
    loaded: LoadedSettings,
    prompt: str | None,
    system: str | None,
    options: dict[str, Any],
    stop_texts: tuple[str, ...],
    priority: str | None,
    stats: bool,
) -> int:
    """Write one answer to stdout as it comes, and nothing else.

    The prompt is the argument, what is piped in, or both (the argument first).

    \b
    Examples:
      stretto generate "Name three rivers."
      stretto generate "Sum this up in one sentence:" < article.txt
      git diff | stretto generate "Write a commit message for:" --temperature 0
    """
    text = read_prompt(prompt)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    with open_client(loaded.settings) as client:
        answered = stream_answer(
            client, messages, {**options, "stop": list(stop_texts) or None, "priority": priority}
        )
    if answered.text and not answered.text.endswith("\n"):
        sys.stdout.write("\n")
    if stats and answered.reply is not None:
        click.echo(footer(answered.reply, answered.first_token_s, answered.total_s), err=True)
    return 0
