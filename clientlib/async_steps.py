"""The driver that performs a flow's waits with anyio, on trio and asyncio alike."""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from clientlib.steps import Flow, Resolve, Sleep, Step, WaitSocket, addresses

T = TypeVar("T")


async def run_flow_async(flow: Flow[T], sleep: Callable[[float], Awaitable[object]]) -> T:
    """Run a flow, waiting as a task. Cancelling the task closes what the flow had open, at once: closing awaits nothing."""
    outcome: Any = None
    try:
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = await _perform(step, sleep)
    finally:
        flow.close()


async def _perform(step: Step, sleep: Callable[[float], Awaitable[object]]) -> object:
    match step:
        case WaitSocket(sock, write, limit_s):
            return await _wait(sock, write, limit_s)
        case Sleep(seconds):
            return await sleep(seconds)
        case Resolve(host, port):
            try:
                return addresses(await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                return error


async def _wait(sock: socket.socket, write: bool, limit_s: float) -> bool:
    if sock.fileno() == -1:  # closed by another task: the flow finds out at its next read
        return True
    with anyio.move_on_after(None if limit_s == math.inf else max(limit_s, 0.0)) as scope:
        await (anyio.wait_writable(sock) if write else anyio.wait_readable(sock))
    return not scope.cancelled_caught
