"""Python client of the Stretto daemon.

    import clientlib

    print(clientlib.generate("What is the capital of France?"))

    with clientlib.stream("Tell me a story.") as pieces:
        for piece in pieces:
            print(piece, end="", flush=True)

It finds the daemon's Unix socket by itself (see default_socket_path). Client and AsyncClient do the rest: conversations, other
addresses, limits, the control plane. Every failure is a ClientError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from clientlib.calls import ChatOptions, Messages, Priority, Sampling
from clientlib.client import Admin, ChatStream, Client, TextStream
from clientlib.credits import AsyncCredits, Credits
from clientlib.default import DEFAULT
from clientlib.errors import (
    AuthenticationError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ContextLengthExceeded,
    DaemonNotRunning,
    Forbidden,
    InsufficientCredits,
    InvalidRequest,
    NotFound,
    ProtocolError,
    QueueFull,
    RateLimited,
    RequestError,
    ServerError,
    Timeout,
    Unavailable,
)
from clientlib.paths import default_socket_path
from clientlib.replies import Choice, Delta, Health, Model, Reply, TokenLogprob, ToolCall, TopLogprob, Usage
from clientlib.timing import Timeouts

if TYPE_CHECKING:
    from clientlib.async_client import AsyncAdmin, AsyncChatStream, AsyncClient, AsyncTextStream

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncChatStream",
    "AsyncClient",
    "AsyncCredits",
    "AsyncTextStream",
    "AuthenticationError",
    "ChatOptions",
    "ChatStream",
    "Choice",
    "Client",
    "ClientError",
    "ConnectFailed",
    "ConnectionLost",
    "ContextLengthExceeded",
    "Credits",
    "DaemonNotRunning",
    "Delta",
    "Forbidden",
    "Health",
    "InsufficientCredits",
    "InvalidRequest",
    "Messages",
    "Model",
    "NotFound",
    "Priority",
    "ProtocolError",
    "QueueFull",
    "RateLimited",
    "Reply",
    "RequestError",
    "Sampling",
    "ServerError",
    "TextStream",
    "Timeout",
    "Timeouts",
    "TokenLogprob",
    "ToolCall",
    "TopLogprob",
    "Unavailable",
    "Usage",
    "chat",
    "default_socket_path",
    "generate",
    "stream",
]


def generate(
    prompt: str,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    model: str | None = None,
    timeout_s: float | None = None,
    priority: Priority | None = None,
    **sampling: Unpack[Sampling],
) -> str:
    """The answer to one prompt, as text, from the daemon on the default socket. Raises ClientError."""
    return DEFAULT.get().generate(
        prompt,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        stop=stop,
        seed=seed,
        model=model,
        timeout_s=timeout_s,
        priority=priority,
        **sampling,
    )


def stream(
    prompt: str,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    model: str | None = None,
    timeout_s: float | None = None,
    priority: Priority | None = None,
    **sampling: Unpack[Sampling],
) -> TextStream:
    """The answer to one prompt, in pieces of text, from the daemon on the default socket. Raises ClientError when read."""
    return DEFAULT.get().stream(
        prompt,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        stop=stop,
        seed=seed,
        model=model,
        timeout_s=timeout_s,
        priority=priority,
        **sampling,
    )


def chat(
    messages: Messages,
    *,
    model: str | None = None,
    timeout_s: float | None = None,
    priority: Priority | None = None,
    **options: Unpack[ChatOptions],
) -> Reply:
    """The answer to a conversation, from the daemon on the default socket. Raises ClientError."""
    return DEFAULT.get().chat(messages, model=model, timeout_s=timeout_s, priority=priority, **options)


def __getattr__(name: str) -> object:
    # The async client is loaded on first use: who works with threads need not pay for anyio's import.
    if name in ("AsyncAdmin", "AsyncChatStream", "AsyncClient", "AsyncTextStream"):
        from clientlib import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
