"""The echo model's vocabulary: one token a byte, and the control tokens of ChatML."""

from __future__ import annotations

import re
from collections.abc import Iterable

BOS_ID = 256
IM_START_ID = 257
IM_END_ID = 258
END_OF_TEXT_ID = 259
VOCAB_SIZE = 260

_CONTROL_TEXTS = {
    BOS_ID: "<|bos|>",
    IM_START_ID: "<|im_start|>",
    IM_END_ID: "<|im_end|>",
    END_OF_TEXT_ID: "<|endoftext|>",
}

ECHO_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as a Jinja template."""


class EchoTokenizer:
    """Byte-level: ids 0 to 255 are the bytes, the four ids above are control tokens.

    It has the same face as a real model's tokenizer, so whatever runs on that runs on this. An id outside the vocabulary
    raises ``ValueError``.
    """

    vocab_size: int = VOCAB_SIZE
    bos_id: int | None = BOS_ID
    eos_id: int | None = IM_END_ID
    end_ids: frozenset[int] = frozenset({IM_END_ID, END_OF_TEXT_ID})
    add_bos: bool = False
    bos_token: str = _CONTROL_TEXTS[BOS_ID]
    eos_token: str = _CONTROL_TEXTS[IM_END_ID]

    def __init__(self) -> None:
        self._ids = {text: token_id for token_id, text in _CONTROL_TEXTS.items()}
        self.special_texts: tuple[str, ...] = tuple(sorted(self._ids, key=lambda text: (-len(text), text)))
        self._split = re.compile("(" + "|".join(re.escape(text) for text in self.special_texts) + ")")

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """UTF-8 bytes as ids; with ``allow_special``, control tokens written in the text become their ids.

        Lone surrogates, which UTF-8 cannot hold, become U+FFFD.
        """
        if not allow_special:
            return list(_utf8(text))
        ids: list[int] = []
        for piece in self._split.split(text):
            control = self._ids.get(piece)
            if control is None:
                ids.extend(_utf8(piece))
            else:
                ids.append(control)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(
            self.token_text(token_id).encode()
            if not skip_special and self.is_special(token_id)
            else self.token_bytes(token_id)
            for token_id in ids
        )
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The token's byte; nothing for a control token."""
        self._check(token_id)
        return bytes((token_id,)) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str:
        """The token as text: a control token's name, else its byte (U+FFFD when it is not a whole character)."""
        self._check(token_id)
        if token_id < 256:
            return bytes((token_id,)).decode("utf-8", errors="replace")
        return _CONTROL_TEXTS[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token."""
        self._check(token_id)
        return token_id >= 256

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < VOCAB_SIZE:
            raise ValueError(f"token id {token_id} is outside the vocabulary of {VOCAB_SIZE}")


def _utf8(text: str) -> bytes:
    # A JSON body may carry a lone surrogate; two of them never make a pair here, because Python joined pairs already.
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode("utf-8")
