"""Prompts that end inside the assistant's turn, because the last message is the beginning of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.errors import InvalidRequest

_PRIVATE_USE = range(0xE000, 0xF900)


def render_open_ended(
    render: Callable[[Sequence[Mapping[str, Any]]], str], messages: Sequence[Mapping[str, Any]], taken: str
) -> str:
    """Render a conversation up to the end of its last message's text, without what the template writes to close the turn.

    A mark is put behind that text, and the prompt ends where the mark comes out.

    Args:
        render: renders messages, without a generation prompt.
        messages: as the template sees them.
        taken: text with every character that the mark may not be.

    Raises:
        InvalidRequest: ``template_error``: the template does not write the last message's text, or writes it more than once;
            ``invalid_message``: no private-use character is left for the mark.
    """
    mark = next((character for character in map(chr, _PRIVATE_USE) if character not in taken), None)
    if mark is None:
        raise InvalidRequest(
            "The messages use all private-use characters (U+E000 to U+F8FF); none is left to mark where the answer goes on.",
            code="invalid_message",
            param="messages",
            remedy="Leave out one of them.",
        )
    *before, last = messages
    pieces = render([*before, {**last, "content": last["content"] + mark}]).split(mark)
    if len(pieces) != 2:
        raise InvalidRequest(
            "The model's chat template cannot leave the assistant's last turn open, so the answer cannot begin with it.",
            code="template_error",
            param="messages",
            remedy="End the messages with a turn of the user.",
        )
    return pieces[0]
