"""``stretto chat``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stretto.cli.connect import open_client
from stretto.cli.conversation import HELP, Command, Conversation, LineReader, Say, read_entry
from stretto.cli.options import with_settings
from stretto.cli.output import is_unicode, print_error, terminal_safe
from stretto.cli.sampling import footer, sampling_options
from stretto.cli.streaming import stream_answer
from stretto.settings import LoadedSettings

if TYPE_CHECKING:
    from clientlib import Client

PROMPT, CONTINUED = "> ", ". "
HISTORY_LINES = 1000


@contextlib.contextmanager
def line_editing(history: Path) -> Iterator[None]:
    """Line editing with a history that is kept, readable by its owner alone; a history that cannot be kept is no reason to stop."""
    import readline

    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(history, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(history)
            history.chmod(0o600)


def read_piped(prompt: str) -> str:
    """A line of piped input. Raises EOFError at its end, and UsageError for what is not text."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not UTF-8 (byte {error.start} of a line)") from None


class Chat:
    """The loop: read an entry, do it, until the input ends.

    Args:
        client: of the daemon.
        conversation: begun.
        options: of every question.
        read_line: gives a line for a prompt; raises EOFError.
        interactive: whether a person types: then errors and Ctrl-C end the answer, and not the chat.
        stats: whether a footer follows each answer, on stderr.
    """

    def __init__(
        self,
        client: Client,
        conversation: Conversation,
        options: dict[str, Any],
        read_line: Callable[[str], str],
        *,
        interactive: bool,
        stats: bool,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._options = options
        self._read_line = read_line
        self._interactive = interactive
        self._stats = stats
        self._reader = LineReader()

    def run(self) -> int:
        """Until the end; the exit status."""
        while True:
            try:
                text = self._entry()
                if text is None:
                    return 0
                entry = read_entry(text)
                if isinstance(entry, Command):
                    if not self._command(entry):
                        return 0
                elif isinstance(entry, Say) and not self._say(entry.text):
                    return 1
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._reader.reset()
                click.echo(err=True)

    def _entry(self) -> str | None:
        """The next complete entry; None at the end of the input."""
        while True:
            try:
                line = self._read_line(CONTINUED if self._reader.pending else PROMPT)
            except EOFError:
                if self._interactive:
                    click.echo(err=True)
                    return None
                return self._reader.end()
            text = self._reader.feed(line)
            if text is not None:
                return text

    def _command(self, command: Command) -> bool:
        """Do it; False to leave."""
        match command.name:
            case "exit" | "quit" | "bye":
                return False
            case "reset":
                self._conversation.reset()
                click.echo("The conversation is forgotten.", err=True)
            case "system" if command.argument:
                self._conversation.set_system(command.argument)
                click.echo("The system message is set; the conversation starts over.", err=True)
            case "system":
                click.echo(self._conversation.system or "There is no system message.", err=True)
            case "help":
                click.echo(HELP, err=True)
            case _:
                print_error(
                    f"/{command.name} is not known.",
                    "/help lists the commands; // sends a line that begins with /.",
                )
        return True

    def _say(self, text: str) -> bool:
        """Ask, show the answer; False when the chat cannot go on."""
        from clientlib import ClientError

        if not is_unicode(text):  # the terminal sent bytes that are not UTF-8
            print_error("what was typed is not valid text in UTF-8.")
            return self._interactive
        messages = self._conversation.ask(text)
        try:
            answered = stream_answer(self._client, messages, self._options, interruptible=self._interactive)
        except ClientError as error:
            self._conversation.answered(error.text)
            if error.text:
                click.echo()
            print_error(error.message, error.remedy)
            return self._interactive
        except BaseException:
            self._conversation.answered("")
            raise
        self._conversation.answered(answered.text)
        if answered.text and not answered.text.endswith("\n"):
            click.echo()
        if answered.reply is None:
            click.echo("[cancelled]", err=True)
        elif self._stats:
            click.echo(footer(answered.reply, answered.first_token_s, answered.total_s), err=True)
        return True


@click.command()
@sampling_options
@with_settings("socket", "state_dir")
def chat(loaded: LoadedSettings, system: str | None, options: dict[str, Any], stats: bool) -> int:
    """Talk to the model; it remembers the conversation until you leave.

    Ctrl-C stops an answer and not the chat; Ctrl-D leaves. Commands: /reset, /system TEXT, /help, /exit. A backslash at the end of a
    line continues it, and triple quotes hold text of several lines. Piped input works too: each line is a question.

    \b
    Examples:
      stretto chat
      stretto chat --system "Answer in one sentence." --temperature 0
      printf 'What is the capital of France?\\nAnd of Spain?\\n' | stretto chat
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with open_client(loaded.settings) as client, contextlib.ExitStack() as stack:
        served = client.models()
        if interactive:
            name = terminal_safe(served[0].id) if served else "?"
            click.echo(f"Talking to {name}. /help lists the commands, Ctrl-D leaves.", err=True)
            stack.enter_context(line_editing(loaded.settings.state_dir / "chat_history"))
        read_line = input if interactive else read_piped
        return Chat(
            client, Conversation(system), options, read_line, interactive=interactive, stats=stats
        ).run()
