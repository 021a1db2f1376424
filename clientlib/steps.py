"""The waits a call is made of, and the driver that performs them with threads' means.

A *flow* is a generator that does everything about a call except waiting: where it would wait it yields a step, and the driver
sends the step's outcome back. The sync and the async client run the same flows, each with its own driver, so the two cannot
differ in what they do.

Steps, like this package's other inner values, are named tuples: to make a frozen dataclass takes several milliseconds of import
time, and a program that asks one question should not wait for that.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class WaitSocket(NamedTuple):
    """Wait until the socket can be written or read. Outcome: True, or False after ``limit_s`` (inf: no limit)."""

    sock: socket.socket
    write: bool
    limit_s: float


class Sleep(NamedTuple):
    """Wait ``seconds``. Outcome: None."""

    seconds: float


class Resolve(NamedTuple):
    """Look a host name up. Outcome: a list of (family, socket address), or the exception that says why there is none."""

    host: str
    port: int


Step = WaitSocket | Sleep | Resolve
Flow = Generator[Step, Any, T]
SocketAddresses = list[tuple[int, Any]]

# poll() counts milliseconds in a C int.
_MAX_POLL_S = 2_000_000.0


def run_flow(flow: Flow[T], sleep: Callable[[float], object]) -> T:
    """Run a flow, waiting in this thread. A KeyboardInterrupt while waiting closes what the flow had open."""
    outcome: Any = None
    try:
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = _perform(step, sleep)
    finally:
        flow.close()


def _perform(step: Step, sleep: Callable[[float], object]) -> object:
    match step:
        case WaitSocket(sock, write, limit_s):
            return _wait(sock, write, limit_s)
        case Sleep(seconds):
            return sleep(seconds)
        case Resolve(host, port):
            try:
                return addresses(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                return error


def _wait(sock: socket.socket, write: bool, limit_s: float) -> bool:
    poller = select.poll()
    try:
        poller.register(sock, select.POLLOUT if write else select.POLLIN)
    except ValueError:  # closed by another thread: the flow finds out at its next read
        return True
    return bool(poller.poll(None if limit_s > _MAX_POLL_S else math.ceil(max(limit_s, 0.0) * 1000)))


def addresses(found: list[Any]) -> SocketAddresses:
    """What getaddrinfo() found, without the parts that nobody needs."""
    return [(family, address) for family, _, _, _, address in found]
