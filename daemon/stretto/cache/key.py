"""Which requests may be answered from the cache, and what two requests must have in common for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from stretto.conversation.messages import Request, TextPart
from stretto.conversation.volatile import without_volatile_lines

_NOT_OF_THE_ANSWER = frozenset(
    {
        "id", "model", "stream", "include_usage", "user", "caller", "reflected", "max_tokens", "lower_max_tokens",
        "parallel_tool_calls", "tool_choice", "priority",
    }
)  # fmt: skip
"""Fields of a request that change nothing about a complete answer without tools. Whatever else there is, now or later, does."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What identifies an answer.

    Attributes:
        tenant: whose it is.
        session: which memory it was made with; None for one made without.
        question: the last user message.
        context: SHA-256 of everything but the question that shapes an answer.
        exact: SHA-256 of that and the question.
    """

    tenant: str
    session: str | None
    question: str
    context: bytes
    exact: bytes


def why_not_cached(request: Request) -> str | None:
    """Why neither to look for an answer to this request nor to keep it, in a stable word; None when both may be done.

    Cached are plain answers to a user's message: one choice, no tools, no structure, no raw prompt, no begun answer, no thinking, no wish
    for probabilities or for what a seed draws.
    """
    for reason, holds in _OBSTACLES.items():
        if holds(request):
            return reason
    return None


def cache_key(request: Request, *, session: str | None) -> CacheKey:
    """The key of a request that ``why_not_cached`` lets through.

    Args:
        request: as the client sent it, before anything is recalled into it.
        session: which memory the answer is made with; None without memory.
    """
    messages = without_volatile_lines(request.messages)
    question = messages[-1].text
    rest = replace(request, messages=(*messages[:-1], replace(messages[-1], content=())))
    document = {
        "tenant": request.caller.tenant,
        "session": session,
        **{
            field.name: _plain(getattr(rest, field.name))
            for field in fields(rest)
            if field.name not in _NOT_OF_THE_ANSWER
        },
    }
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    context = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    exact = hashlib.sha256(context + question.encode("utf-8", "surrogatepass")).digest()
    return CacheKey(request.caller.tenant, session, question, context, exact)


def _plain(value: Any) -> Any:
    """A value of a request as JSON has it. Raises TypeError for one that nobody thought of, rather than leave it out."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a request holds a {type(value).__name__}, which no cache key can be made of")


def _has_only_text(request: Request) -> bool:
    return all(isinstance(part, TextPart) for message in request.messages for part in message.content)


_OBSTACLES: Mapping[str, Callable[[Request], bool]] = {
    "off": lambda request: request.caller.cache == "off",
    "raw_prompt": lambda request: bool(request.prompts) or not request.messages,
    "prefill": lambda request: request.continues or request.messages[-1].role != "user",
    "empty": lambda request: not request.messages[-1].text.strip(),
    "content": lambda request: not _has_only_text(request),
    "tools": lambda request: bool(request.tools),
    "structured": lambda request: request.constraint is not None,
    "thinking": lambda request: request.reasoning.enabled is True or request.reasoning.effort is not None,
    "choices": lambda request: request.n != 1 or request.best_of not in (None, 1),
    "logprobs": lambda request: request.logprobs is not None,
    "seed": lambda request: request.sampling.seed is not None,
    "ignore_eos": lambda request: request.ignore_eos,
    "no_answer": lambda request: request.max_tokens == 0,
}
"""Reasons and when they hold, in order; a later one may count on the earlier ones."""
