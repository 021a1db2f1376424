"""The ``stretto`` command: its group, and how every error becomes one or two lines and an exit status.

Exit status: 0 ok, 1 run-time failure, 2 bad arguments or settings (before anything loads), 130 interrupted, 141 nobody reads
the output any more.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

import click

from stretto._version import __version__
from stretto.cli.output import print_error
from stretto.errors import SettingsError, StrettoError

# Name, and what the list of commands says of it. A command's module is imported when it is asked for: `stretto --help` and
# `stretto version` need none of what the others do.
COMMANDS = {
    "serve": "Load the model and serve it until told to stop.",
    "pull": "Get a model, check it and install it; prints its path.",
    "models": "List the models that are installed, and those that can be pulled by name.",
    "chat": "Talk to the model; it remembers the conversation until you leave.",
    "generate": "Write one answer to stdout as it comes, and nothing else.",
    "status": "Show what the daemon is doing: model, memory, queue, and each live request.",
    "stop": "Stop the daemon, and wait until it has gone.",
    "memory": "Look at what the daemon remembers, pin notes, and forget.",
    "cache": "Look at the answers that the daemon keeps, and forget them.",
    "credits": "Look after the credit ledger: keys, what they have, and what they paid.",
    "db": "Look after the store: the file of memories, cached answers and credits in the state directory.",
    "doctor": "Look at this machine: can it serve MODEL (or the one that is set), and what is missing?",
    "bench": "Measure the daemon, alone or side by side with other OpenAI-compatible servers.",
    "version": "Print the version.",
}

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Root(click.Group):
    """A group whose commands return their exit status and raise errors meant for people."""

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command and exit with its status."""
        extra["standalone_mode"] = False
        sys.exit(self._run(args, prog_name or "stretto", rest, extra))

    def _run(self, args: Any, prog_name: str, rest: tuple[Any, ...], extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, *rest, **extra)
            return result if isinstance(result, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return EXIT_USAGE
        except click.UsageError as error:
            error.show()
            return EXIT_USAGE
        except click.ClickException as error:
            print_error(error.format_message())
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        except SettingsError as error:
            print_error(error.message, error.remedy)
            return EXIT_USAGE
        except StrettoError as error:
            print_error(error.message, error.remedy)
            return EXIT_FAILURE
        except Exception as error:
            if not _print_expected(error):
                raise
            return EXIT_FAILURE

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"stretto.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our output that has gone ends it quietly."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:  # it is when we were started with it closed
                sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            raise click.exceptions.Exit(EXIT_BROKEN_PIPE) from None
        return result


def _print_expected(error: Exception) -> bool:
    """Print an error of the client library or of the operating system; False when it is neither."""
    # Not imported for commands that do not use it.
    client_errors = sys.modules.get("clientlib.errors")
    if client_errors is not None and isinstance(error, client_errors.ClientError):
        print_error(error.message, error.remedy)
        return True
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print_error(f"{where}{error.strerror or error}")
        return True
    return False


def _discard_stdout() -> None:
    """Send what is still buffered to nowhere: the interpreter flushes it again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 ok, 1 failure, 2 bad arguments or settings.",
)
@click.version_option(__version__, message="stretto %(version)s")
def main() -> None:
    """One daemon that owns one model and serves it to everything on this machine.

    \b
    Start here:
      stretto pull             get the default model (once)
      stretto serve            load it and serve it, until Ctrl-C
      stretto chat             talk to it, from another terminal
      stretto generate "Hi"    one answer on stdout, for scripts

    `stretto COMMAND --help` has examples of each.
    """
