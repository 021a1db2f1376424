"""Requests that end when their client goes, and the reading of their bodies. Pure ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from starlette.types import Message, Receive, Send

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has gone; there is nobody left to answer."""


async def read_body(receive: Receive) -> bytes:
    """The whole request body. The server bounds its size and time.

    Raises:
        ClientDisconnected: the client went, or was refused, before the end.
    """
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def run_until_disconnect(receive: Receive, send: Send, work: Callable[[Send], Awaitable[T]]) -> T:
    """Do the work, and cancel it as soon as the client goes. Call it after the body has been read.

    ``work`` is given the ``send`` to use. Once it begins its last message, a disconnect counts no more: servers report one at
    the end of a reply, and cancelling then would cut their clean-up, and ours, in the middle.

    Raises:
        ClientDisconnected: the client went first.
        Exception: whatever the work raises, as it is.
    """
    result: list[T] = []
    failure: Exception | None = None
    ending = False

    async def watched_send(message: Message) -> None:
        nonlocal ending
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            ending = True
        await send(message)

    async def watch(scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not ending:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            result.append(await work(watched_send))
        except Exception as error:  # raised below: a nursery would wrap it in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not result:
        raise ClientDisconnected
    return result[0]
