"""``stretto stop``."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import click

from stretto.cli.connect import open_client
from stretto.cli.options import with_settings
from stretto.cli.output import print_error
from stretto.settings import LoadedSettings

_POLL_S = 0.1
# Beyond the grace: the engine ends its step, files are closed.
_MARGIN_S = 30.0


@contextlib.contextmanager
def watch_process(pid: object) -> Iterator[int | None]:
    """A descriptor that becomes readable when process ``pid`` ends; None where there is no such thing."""
    fd = None
    if isinstance(pid, int) and pid > 0 and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def nobody_listens(path: Path) -> bool:
    """Whether a connection to the socket is refused, or there is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_POLL_S)
        return probe.connect_ex(os.fsencode(path)) in (errno.ECONNREFUSED, errno.ENOENT)


def wait_until_gone(process: int | None, path: Path, limit_s: float) -> bool:
    """Wait for the end of the process, or, if that cannot be watched, of its listening; False when it did not come in time.

    Watching comes first: a socket that a service manager holds is listened on for ever, and connecting starts the daemon again.
    """
    if process is not None:
        return bool(select.select([process], [], [], limit_s)[0])
    deadline = time.monotonic() + limit_s
    while not nobody_listens(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


@click.command()
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="Time for running answers to end.  [default: the daemon's drain_grace_s]",
)
@with_settings("socket")
def stop(loaded: LoadedSettings, grace_s: float | None) -> int:
    """Stop the daemon, and wait until it has gone.

    It takes no new work from then on; running answers get their grace, then end with an error.

    \b
    Examples:
      stretto stop
      stretto stop --grace 0      at once
    """
    if grace_s is not None and not math.isfinite(grace_s):
        raise click.BadParameter("must be a number of seconds", param_hint="--grace")
    from clientlib import DaemonNotRunning

    path = loaded.settings.socket
    with open_client(loaded.settings) as client:
        try:
            pid = client.status().get("pid")
        except DaemonNotRunning as error:
            print_error(
                error.message, "Nothing to stop here; if it has another socket, name it with --socket."
            )
            return 1
        with watch_process(pid) as process:
            client.stop(grace_s)
            client.close()
            limit_s = (loaded.settings.drain_grace_s if grace_s is None else grace_s) + _MARGIN_S
            if not wait_until_gone(process, path, limit_s):
                print_error(f"the daemon at {path} has not ended within {limit_s:.0f} s.")
                return 1
    click.echo("stopped", err=True)
    return 0
