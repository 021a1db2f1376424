"""How long an answer may be, so that it and its prompt fit the context."""

from __future__ import annotations

from stretto.conversation import context_length_message
from stretto.conversation.messages import Request
from stretto.errors import ContextLengthExceeded


def fitting_max_tokens(request: Request, prompt_tokens: int, limit: int, default: int | None) -> int:
    """Tokens the answer may have. Never cuts the prompt, nor, unless it lets us, what a request asked for by name.

    Args:
        prompt_tokens: of the prompt.
        limit: tokens of the context.
        default: the answer's limit when a request names none; None means all that is left.

    Raises:
        ContextLengthExceeded: prompt, or prompt and ``max_tokens``, do not fit.
    """
    asked = request.max_tokens
    left = limit - prompt_tokens
    if asked is not None and request.lower_max_tokens:
        asked = min(asked, max(left, 1))
    least = 0 if asked == 0 else 1
    if left < least or (asked is not None and asked > left):
        source = "prompt" if request.prompts else "messages"
        raise ContextLengthExceeded(
            context_length_message(limit, prompt_tokens, asked if left >= least else None, source),
            limit_tokens=limit,
            prompt_tokens=prompt_tokens,
            param=source if left < least else "max_tokens",
        )
    if asked is not None:
        return asked
    return left if default is None else min(left, default)
