"""Tokenizers and tokens for tests of conversations: a vocabulary made of whatever bytes a test needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto.conversation import Message, Request, Role, TextPart


@dataclass(frozen=True)
class GivenToken:
    """A token as the engine would give it."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class PieceTokenizer:
    """Token ``i`` stands for the bytes ``pieces[i]``; control tokens have none."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces)
        self.bos_id: int | None = None
        self.add_bos = False
        self.special_texts: tuple[str, ...] = ()

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token_id: int, /) -> bytes:
        return self.pieces[token_id]

    def token_text(self, token_id: int, /) -> str:
        return f"<control {token_id}>"

    def tokens(self, *, logprobs: bool = False) -> list[GivenToken]:
        """One token for each piece, in order; the logprob of token i is -i."""
        return [GivenToken(i, -float(i) if logprobs else None) for i in range(len(self.pieces))]


class CharTokenizer:
    """One token a character (its code point), and one a control token (from 0x110000 on). Records the pieces it was given."""

    def __init__(self, special: Sequence[str], *, bos: str | None = None, add_bos: bool = False) -> None:
        self.special_texts = tuple(sorted(special, key=len, reverse=True))
        self._ids = {text: 0x110000 + i for i, text in enumerate(self.special_texts)}
        self._pattern = re.compile("|".join(map(re.escape, self.special_texts)) or "(?!)")
        self.bos_id = None if bos is None else self._ids[bos]
        self.add_bos = add_bos
        self.vocab_size = 0x110000 + len(special)
        self.end_ids: frozenset[int] = frozenset()
        self.calls: list[tuple[str, bool]] = []

    def id_of(self, special: str) -> int:
        return self._ids[special]

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        self.calls.append((text, allow_special))
        if not allow_special:
            return [ord(character) for character in text]
        ids, position = [], 0
        for match in self._pattern.finditer(text):
            ids += [ord(character) for character in text[position : match.start()]]
            ids.append(self._ids[match.group()])
            position = match.end()
        return ids + [ord(character) for character in text[position:]]

    def token_bytes(self, token_id: int, /) -> bytes:
        return b"" if token_id >= 0x110000 else chr(token_id).encode()

    def token_text(self, token_id: int, /) -> str:
        return self.special_texts[token_id - 0x110000] if token_id >= 0x110000 else chr(token_id)

    def text(self, ids: Iterable[int]) -> str:
        return "".join(map(self.token_text, ids))


def message(role: Role, text: str | None = None, **more: object) -> Message:
    content = () if text is None else (TextPart(text),)
    return Message(role, content, **more)  # type: ignore[arg-type]


def request(*messages: Message, **more: object) -> Request:
    return Request(id="chatcmpl-0", model="m", messages=messages, **more)  # type: ignore[arg-type]
