"""Replies that a request and its retries share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import trio
from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.reading import require_json
from stretto.api.recording import Recording
from stretto.api.replies import send_json_bytes
from stretto.api.retries import Retries
from stretto.api.retry_key import RetryKey, retry_key
from stretto.conversation.caller import Caller
from stretto.serving import Header, drain_of, read_body, run_until_disconnect

REPLAYED = (b"idempotent-replayed", b"true")
"""On a reply that another request began."""
_HASHED_ON_THE_LOOP_BYTES = 1 << 20

Compute = Callable[[bytes], Awaitable[tuple[bytes, list[Header]]]]
"""From a request's body to its reply's body and header fields."""


async def share_reply(
    scope: Scope, receive: Receive, send: Send, compute: Compute, *, retries: Retries | None
) -> None:
    """Answer a request whose reply is one piece: compute it, or join the run of the request that this one is a retry of.

    A client that goes ends the work, unless it is expected to ask again.

    Args:
        compute: does the work; its failures are the reply's.
        retries: lets a retry join the run of the request before; None runs each by itself.

    Raises:
        StrettoError: why there is no reply.
        ClientDisconnected: nobody listens any more.
    """
    began = trio.current_time()
    caller = caller_of(scope)
    require_json(scope)
    body = await read_body(receive)
    key = await key_of(scope, caller, body, stream=False)
    if retries is None or key is None:
        await run_until_disconnect(receive, send, partial(_send_computed, compute, body))
        return
    play = partial(_record, compute, body)
    with retries.joined(key, scope["state"]["request_id"], play, began) as (run, again):
        scope["state"]["request_id"] = run.request_id
        await run_until_disconnect(receive, send, partial(send_recorded, scope, run.recording, again))


async def key_of(scope: Scope, caller: Caller, body: bytes, *, stream: bool) -> RetryKey | None:
    """What makes the request the same as another; see ``retry_key``."""
    find = partial(retry_key, caller, scope["path"], scope["headers"], body, stream=stream)
    if len(body) > _HASHED_ON_THE_LOOP_BYTES:
        return await trio.to_thread.run_sync(find)
    return find()


async def recorded_head(scope: Scope, recording: Recording, again: bool) -> list[Header]:
    """The header fields of a recorded reply, once there are any.

    Args:
        again: whether another request began it.

    Raises:
        StrettoError: what ended the run before, or the end of the server's grace.
    """
    return [*await drain_of(scope).run(recording.head), *([REPLAYED] if again else [])]


async def send_recorded(scope: Scope, recording: Recording, again: bool, send: Send) -> None:
    """Send a recorded JSON reply as a whole. Raises as ``recorded_head`` does."""
    headers = await recorded_head(scope, recording, again)
    async with aclosing(recording.read()) as pieces:
        body = b"".join([piece async for piece in pieces])
    await send_json_bytes(send, body, headers=headers)


async def _send_computed(compute: Compute, body: bytes, send: Send) -> None:
    reply, headers = await compute(body)
    await send_json_bytes(send, reply, headers=headers)


async def _record(compute: Compute, body: bytes, recording: Recording) -> None:
    reply, headers = await compute(body)
    recording.begin(headers)
    await recording.write(reply)
