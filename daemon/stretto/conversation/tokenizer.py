"""What conversations need of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Tokenizer(Protocol):
    """The part of a tokenizer that renders prompts and assembles answers. All ids are below ``vocab_size``.

    Control tokens are the ones a chat template writes to mark turns (and BOS, EOS, padding); they are not text, so
    ``token_bytes`` gives ``b""`` for them.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token that begins a prompt, if the model has one."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether every prompt begins with ``bos_id``, even when the template does not write it."""
        ...

    @property
    def bos_token(self) -> str:
        """The text of ``bos_id`` as templates write it; empty when there is none."""
        ...

    @property
    def eos_token(self) -> str:
        """The text of the end token as templates write it; empty when there is none."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, end of turn."""
        ...

    @property
    def special_texts(self) -> tuple[str, ...]:
        """How the control tokens are written, longest first."""
        ...

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of a text, without an added BOS; ``allow_special=False`` reads control tokens in it as plain text."""
        ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids, without the space that some vocabularies put before a text; control tokens as they are written
        unless they are skipped."""
        ...

    def token_bytes(self, token_id: int, /) -> bytes:
        """The UTF-8 bytes a token stands for: possibly part of a character; nothing for control tokens."""
        ...

    def token_text(self, token_id: int, /) -> str:
        """A token as a person may read it."""
        ...
