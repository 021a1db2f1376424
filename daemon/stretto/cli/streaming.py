"""Write an answer as it comes, and keep what came."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stretto.cli.output import write_text

if TYPE_CHECKING:
    from clientlib import Client, Reply


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a question.

    Attributes:
        text: what was written.
        reply: the whole reply; None when it was interrupted.
        first_token_s, total_s: seconds from the call.
    """

    text: str
    reply: Reply | None
    first_token_s: float | None
    total_s: float


def stream_answer(
    client: Client,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    interruptible: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Answered:
    """Ask, and write the answer to stdout as it comes. Leaving early, by Ctrl-C too, cancels it in the daemon.

    Args:
        interruptible: whether Ctrl-C ends the answer only; else it raises KeyboardInterrupt.

    Raises:
        ClientError: refused, or broken off; what was written stays written.
    """
    started, first = clock(), None
    pieces: list[str] = []
    reply = None
    try:
        with client.chat_stream(messages, **options) as stream:
            for delta in stream:
                if delta.text:
                    if first is None:
                        first = clock() - started
                    pieces.append(delta.text)
                    write_text(delta.text)
            reply = stream.reply()
    except KeyboardInterrupt:
        if not interruptible:
            raise
    return Answered("".join(pieces), reply, first, clock() - started)
