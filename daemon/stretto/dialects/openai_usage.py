"""Usage as Chat Completions and Completions write it."""

from __future__ import annotations

from stretto.conversation.events import Usage


def usage_object(usage: Usage) -> dict[str, object]:
    """The ``usage`` of a reply, or of a stream's last chunk."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.rejected_tokens,
        },
        **usage.cost,
    }
