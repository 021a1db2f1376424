"""Prompts in the echo model's ChatML, as token ids."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.backends.echo import EchoTokenizer

TOKENIZER = EchoTokenizer()


def chat_ids(text: str, *, system: str | None = None) -> list[int]:
    """Ids of a chat whose last user message is ``text``; the echo model answers with ``text``."""
    head = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return [
        *TOKENIZER.encode(head + "<|im_start|>user\n", allow_special=True),
        *TOKENIZER.encode(text, allow_special=False),
        *TOKENIZER.encode("<|im_end|>\n<|im_start|>assistant\n", allow_special=True),
    ]


def text_of(ids: Iterable[int]) -> str:
    """Text of token ids without control tokens."""
    return TOKENIZER.decode(list(ids))


def dialogue_ids(turns: Iterable[tuple[str, str]], text: str, *, system: str | None = None) -> list[int]:
    """Ids of a chat that goes on: what was said and answered before, then ``text``, which the echo model answers with ``text``."""
    ids = [] if system is None else turn_ids("system", system)
    for said, answered in turns:
        ids += turn_ids("user", said) + turn_ids("assistant", answered)
    return ids + turn_ids("user", text) + TOKENIZER.encode("<|im_start|>assistant\n", allow_special=True)


def turn_ids(role: str, text: str) -> list[int]:
    """Ids of one turn."""
    return [
        *TOKENIZER.encode(f"<|im_start|>{role}\n", allow_special=True),
        *TOKENIZER.encode(text, allow_special=False),
        *TOKENIZER.encode("<|im_end|>\n", allow_special=True),
    ]
