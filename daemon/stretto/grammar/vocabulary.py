"""A model's vocabulary as llguidance reads it: the bytes of every token."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from stretto.conversation.tokenizer import Tokenizer


class Vocabulary:
    """The shape that ``llguidance.LLTokenizer`` takes a tokenizer in.

    Control tokens are no text, so no grammar can ask for them: they have names here that nobody writes.

    Args:
        tokenizer: any; it needs no file of its own format. For grammars it has at least one end token.
    """

    is_tokenizer_wrapper = True
    """By this llguidance knows the shape."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_ids = sorted(tokenizer.end_ids)
        self.eos_token_id = self.end_ids[0] if self.end_ids else 0
        self.bos_token_id: int | None = None
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        self.ids: dict[bytes, int] = {}
        """The token of some bytes; of several, the lowest."""
        for token_id in range(tokenizer.vocab_size):
            data = b"" if token_id in tokenizer.end_ids else tokenizer.token_bytes(token_id)
            if not data:
                self.special_token_ids.append(token_id)
            else:
                self.ids.setdefault(data, token_id)
            # llguidance marks control tokens by a first byte that UTF-8 never has.
            self.tokens.append(data or b"\xff[%d]" % token_id)
        self.longest_bytes = max(map(len, self.ids), default=1)

    def __call__(self, text: str) -> Sequence[int]:
        """Token ids of a text, as the model's own tokenizer cuts it if that gives just this text, else longest first.

        A tokenizer may add a space before a text, or know some characters only as unknown.
        """
        data = text.encode()
        ids = self._tokenizer.encode(text, allow_special=False)
        if b"".join(map(self._tokenizer.token_bytes, ids)) == data:
            return ids
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        position = 0
        while position < len(data):
            for length in range(min(self.longest_bytes, len(data) - position), 0, -1):
                token_id = self.ids.get(data[position : position + length])
                if token_id is not None:
                    ids.append(token_id)
                    position += length
                    break
            else:
                break  # no token holds this byte; what is known so far is still right
        return ids


def llguidance_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """Hand a vocabulary over; takes up to a second for a large one."""
    return llguidance.LLTokenizer(
        vocabulary,  # type: ignore[arg-type]  # it has the shape, without the class's own wrapping
        n_vocab=len(vocabulary.tokens),
        eos_token=vocabulary.end_ids,
    )
