"""Text to token ids and back, the same for every format and vocabulary.

Two ways of spelling bytes are known:

``bytes``
    Byte-level BPE (GPT-2): each character of a token stands for one byte, so tokens join to exactly the text.
``sentencepiece``
    Tokens are text in which ``▁`` (U+2581) is a space, and ``<0xAB>`` tokens are single bytes. Vocabularies of this kind
    usually put one space before the text when they encode; then the tokens join to the text with one space before it,
    and ``decode`` takes that space away again. A text that itself holds U+2581 comes back with a space in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

import tokenizers

from stretto.errors import InvalidRequest

END_TEXTS = frozenset(
    {
        "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>",
        "<eos>", "<EOT>", "<|end_of_turn|>", "<end_of_utterance>", "<|return|>",
    }
)  # fmt: skip
"""Control tokens that end an answer in whatever vocabulary has them."""

SPACE = "▁"
_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenKind(IntEnum):
    """What a token is, numbered as ``tokenizer.ggml.token_type`` does."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SILENT = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.UNUSED})


def byte_characters() -> dict[str, int]:
    """GPT-2's table: which byte each of its 256 characters stands for.

    Printable Latin-1 stands for itself; the other bytes are, in order, the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table, spare = {}, 0x100
    for byte in range(256):
        if byte in printable:
            table[chr(byte)] = byte
        else:
            table[chr(spare)] = byte
            spare += 1
    return table


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a format's reader found out about a vocabulary.

    Attributes:
        texts: the text of each token as the vocabulary spells it, by id.
        kinds: the kind of each.
        spelling: ``bytes`` or ``sentencepiece``.
        bos_id, eos_id: None when the vocabulary has none.
        end_ids: ids that end an answer, besides those that ``END_TEXTS`` finds.
        add_bos: the model wants BOS before every prompt.
        strips_space: decoding takes one leading space away (see the module's text).
        fused_id: a token of which several in a row are one (SentencePiece's unknown token).
    """

    texts: Sequence[str]
    kinds: Sequence[int]
    spelling: str
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    strips_space: bool
    fused_id: int | None = None


class Tokenizer:
    """Encodes and decodes; safe to use from several threads at once (nothing in it changes after construction).

    Attributes:
        vocab_size: one more than the largest id.
        bos_id, eos_id: None when the vocabulary has none; bos_token, eos_token: their texts, ``""`` for None.
        end_ids: every id that ends an answer.
        add_bos: the model wants BOS before every prompt (``encode`` never adds it).
        special_texts: texts of the control tokens, longest first.
        strips_space: ``decode`` takes one leading space away.
    """

    def __init__(self, base: tokenizers.Tokenizer, facts: TokenizerFacts) -> None:
        """Take over ``base``; nobody else may change it afterwards."""
        self._special = base
        self._special.encode_special_tokens = False
        self._plain = _twin(base)
        self._plain.encode_special_tokens = True
        self._texts = tuple(facts.texts)
        self._kinds = bytes(facts.kinds)
        self._bytes = byte_characters() if facts.spelling == "bytes" else None
        self.vocab_size = len(self._texts)
        self.bos_id, self.eos_id = facts.bos_id, facts.eos_id
        self.bos_token = "" if facts.bos_id is None else self._texts[facts.bos_id]
        self.eos_token = "" if facts.eos_id is None else self._texts[facts.eos_id]
        self.add_bos = facts.add_bos and facts.bos_id is not None
        self.strips_space = facts.strips_space
        self._fused_id = facts.fused_id
        controls = [i for i, kind in enumerate(self._kinds) if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN)]
        ends = {i for i in controls if self._texts[i] in END_TEXTS} | facts.end_ids
        if facts.eos_id is not None:
            ends.add(facts.eos_id)
        self.end_ids = frozenset(ends)
        self.special_texts = tuple(
            sorted({self._texts[i] for i in controls}, key=lambda text: (-len(text), text))
        )

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of a text, without BOS or EOS.

        Args:
            text: any text.
            allow_special: control tokens that are written in the text become control tokens; else they are ordinary
                text. (Tokens that the vocabulary lists whole without being control tokens are found either way.)

        Raises:
            InvalidRequest: the text holds half a surrogate pair, which has no UTF-8.
        """
        try:
            base = self._special if allow_special else self._plain
            return self._fuse(base.encode(text, add_special_tokens=False).ids)
        except TypeError:
            found = _SURROGATE.search(text)
            if found is None:
                raise
            raise InvalidRequest(
                f"The text holds half a surrogate pair (U+{ord(found[0]):04X}) at character {found.start()}.",
                code="invalid_value",
                remedy="Send whole characters.",
            ) from None

    def _fuse(self, ids: list[int]) -> list[int]:
        fused = self._fused_id
        if fused is None or fused not in ids:
            return ids
        return [
            token for before, token in zip((None, *ids), ids, strict=False) if not before == token == fused
        ]

    def token_text(self, token_id: int) -> str:
        """A token as the vocabulary spells it; ``""`` for an id that it leaves out. Raises IndexError out of range."""
        return self._texts[self._checked(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; ``b""`` for control and unused tokens.

        A token may end within a character; the bytes of a whole answer, joined, decode to its text.
        """
        kind = self._kinds[self._checked(token_id)]
        if kind in _SILENT:
            return b""
        text = self._texts[token_id]
        if self._bytes is not None:
            if kind == TokenKind.USER_DEFINED:
                return text.encode()
            try:
                return bytes([self._bytes[character] for character in text])
            except KeyError:
                return text.encode()
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode()

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        Equal to decoding the joined ``token_bytes``, less the one leading space of ``strips_space``.

        Args:
            ids: token ids.
            skip_special: leave control tokens out; else their texts are put in.
        """
        parts = [
            self._texts[i].encode() if not skip_special and self._kinds[i] in _SILENT else self.token_bytes(i)
            for i in ids
        ]
        joined = b"".join(parts)
        if self.strips_space and joined.startswith(b" "):
            joined = joined[1:]
        return joined.decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether a token never shows as text: control, unknown and unused ones."""
        return self._kinds[self._checked(token_id)] in _SILENT

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._texts):
            raise IndexError(f"token {token_id} is out of 0 to {len(self._texts) - 1}")
        return token_id


def _twin(base: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A second tokenizer over the same vocabulary in memory, with the same added tokens.

    One is set to find control tokens in text and the other not to. A single one would have to be switched to and fro,
    which two threads cannot do at once.
    """
    twin = tokenizers.Tokenizer(base.model)
    # The library's stubs leave out that these three may be None.
    if base.normalizer is not None:
        twin.normalizer = base.normalizer
    if base.pre_tokenizer is not None:
        twin.pre_tokenizer = base.pre_tokenizer
    added = sorted(base.get_added_tokens_decoder().items())
    # In id order, since new ids are given in that order; in runs, since each call rebuilds the search for all of them.
    for special, run in groupby((token for _, token in added), key=lambda token: token.special):
        (twin.add_special_tokens if special else twin.add_tokens)(list(run))
    if sorted(twin.get_added_tokens_decoder()) != [token_id for token_id, _ in added]:
        # Ids with gaps between them, which only reading the serialised form reproduces.
        twin = tokenizers.Tokenizer.from_str(base.to_str())
    return twin
