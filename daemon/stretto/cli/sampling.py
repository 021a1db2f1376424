"""Options of the commands that ask for answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stretto.cli.output import duration_text

if TYPE_CHECKING:
    from clientlib import Reply

_OPTIONS = (
    click.option(
        "--system", metavar="TEXT", help="System message: who the model is to be, and how it is to answer."
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(0, 2),
        metavar="X",
        help="0 is always the likeliest token; higher is more varied.  [default: the daemon's]",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="X",
        help="Share of likely tokens to choose from.",
    ),
    click.option("--seed", type=int, metavar="N", help="Makes a varied answer repeatable."),
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Longest answer.  [default: what the context leaves]",
    ),
    click.option("--stats", is_flag=True, help="Show tokens and speed on stderr after each answer."),
)


def sampling_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add them: ``system`` and ``stats`` as they are, the others together as ``options``."""

    @functools.wraps(callback)
    def wrapper(
        *args: Any,
        temperature: float | None,
        top_p: float | None,
        seed: int | None,
        max_tokens: int | None,
        **kwargs: Any,
    ) -> Any:
        options = {"temperature": temperature, "top_p": top_p, "seed": seed, "max_tokens": max_tokens}
        return callback(*args, options=options, **kwargs)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper


def footer(reply: Reply, first_token_s: float | None, total_s: float) -> str:
    """E.g. ``[stop · 12 prompt tokens (8 cached) · 34 tokens · 21.5 tok/s · first after 0.2 s]``."""
    parts = [reply.finish_reason or "?"]
    usage = reply.usage
    if usage is not None:
        cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
        parts += [f"{usage.prompt_tokens:,} prompt tokens{cached}", f"{usage.completion_tokens:,} tokens"]
        if first_token_s is not None and usage.completion_tokens > 1 and total_s > first_token_s:
            parts.append(f"{(usage.completion_tokens - 1) / (total_s - first_token_s):.1f} tok/s")
    if first_token_s is not None:
        parts.append(f"first after {duration_text(first_token_s)}")
    return f"[{' · '.join(parts)}]"
