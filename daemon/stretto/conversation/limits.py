"""The sentence for a conversation that does not fit the context."""

from __future__ import annotations


def context_length_message(
    limit: int, prompt_tokens: int, max_tokens: int | None, what: str = "messages"
) -> str:
    """Say that prompt and answer exceed the context, with all the figures.

    Agents recognise this error by its words and read both numbers out of them (``maximum context length is N tokens …
    resulted in M tokens`` or ``… requested M tokens``), to compress the conversation and try again. So the form is part of the
    interface: plain digits, the limit first, and no other number between the two.

    Args:
        limit: tokens the context holds.
        prompt_tokens: tokens of the rendered conversation.
        max_tokens: the answer's length that was asked for; None (or 0) when the prompt alone is the matter.
        what: the field that the prompt came in, ``messages`` or ``prompt``.
    """
    if max_tokens:
        return (
            f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + max_tokens} "
            f"tokens ({prompt_tokens} in the {what}, {max_tokens} in the completion). Please reduce the length of the "
            f"{what} or of the completion."
        )
    return (
        f"This model's maximum context length is {limit} tokens. However, your {what} resulted in {prompt_tokens} "
        f"tokens. Please reduce the length of the {what}."
    )
