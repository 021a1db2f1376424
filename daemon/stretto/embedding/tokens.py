"""Text to the token ids that an encoder reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.embedding.config import EncoderConfig
from stretto.errors import InvalidRequest
from stretto.weights.faults import invalid
from stretto.weights.hf_tokenizer import read_tokenizer_json

_MAX_TOKENIZER_BYTES = 64 << 20
_CHARACTERS_A_TOKEN = 64
"""Far more than a token has on average: the beginning of a text that is this long has too many tokens, almost always."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Token ids of one text, control tokens included. ``cut``: the text is longer, and its end was not tokenised."""

    ids: list[int]
    cut: bool = False


class TextEncoder:
    """The vocabulary of an encoder. Control tokens are put around a text; written in a text, they are ordinary text.

    Args:
        directory: with the tokenizer.json.
        config: bounds the ids.

    Raises:
        StartupError: ``model_invalid``.
    """

    def __init__(self, directory: Path, config: EncoderConfig) -> None:
        where = directory / "tokenizer.json"
        base = read_tokenizer_json(directory, _MAX_TOKENIZER_BYTES)
        base.encode_special_tokens = True
        around = base.encode("").ids
        if len(around) != 2:
            raise invalid(where, f"puts {len(around)} control tokens around a text, where BERT has two")
        largest = max(base.get_vocab(with_added_tokens=True).values())
        if largest >= config.vocab_size:
            raise invalid(
                where, f"token {largest} lies beyond the {config.vocab_size} rows of the embedding table"
            )
        self.first_id, self.last_id = around
        self._base = base
        self._max_tokens = config.max_tokens

    def encode(self, texts: Sequence[str], *, param: str = "input") -> list[TokenizedText]:
        """Tokenise texts. Other threads run meanwhile.

        Args:
            texts: any number of them.
            param: the field that they came in, for errors.

        Raises:
            InvalidRequest: a text holds half a surrogate pair; ``param`` is e.g. ``input[index]``.
        """
        bound = _CHARACTERS_A_TOKEN * self._max_tokens
        found = self._ids([text[:bound] for text in texts], param)
        long = [
            index
            for index, text in enumerate(texts)
            if len(text) > bound and len(found[index].ids) <= self._max_tokens
        ]
        # Few tokens for so many characters (words of no language, white space): only now is the rest looked at.
        for index, whole in zip(long, self._ids([texts[index] for index in long], param), strict=True):
            found[index] = whole
        return [
            TokenizedText(tokenized.ids, cut=len(text) > bound and index not in long)
            for index, (text, tokenized) in enumerate(zip(texts, found, strict=True))
        ]

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """Ids that came as such, with the control tokens around them unless they have them."""
        if ids and ids[0] == self.first_id:
            return list(ids)
        return [self.first_id, *ids, self.last_id]

    def shorten(self, ids: list[int]) -> list[int]:
        """The longest beginning that fits, ended by its control token."""
        if len(ids) <= self._max_tokens:
            return ids
        return [*ids[: self._max_tokens - 1], self.last_id]

    def _ids(self, texts: Sequence[str], param: str) -> list[TokenizedText]:
        if not texts:
            return []
        try:
            # The only way into the library that lets other threads run.
            encodings = self._base.encode_batch_fast(list(texts))
        except TypeError:
            for index, text in enumerate(texts):
                if (half := _SURROGATE.search(text)) is not None:
                    raise InvalidRequest(
                        f"The text holds half a surrogate pair (U+{ord(half[0]):04X}) at character {half.start()}.",
                        code="invalid_value",
                        param=f"{param}[{index}]",
                        remedy="Send whole characters.",
                    ) from None
            raise
        return [TokenizedText(encoding.ids) for encoding in encodings]
