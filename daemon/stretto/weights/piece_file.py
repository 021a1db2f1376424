"""``tokenizer.model``: a SentencePiece vocabulary as the library saves it, a message of Protocol Buffers.

Only what decides how text is cut is read; field numbers are those of ``sentencepiece_model.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stretto.weights.faults import invalid, unsupported
from stretto.weights.jsonfile import read_bytes
from stretto.weights.sentencepiece import BYTE, Pieces
from stretto.weights.tokenizer import SPACE, TokenKind

MAX_BYTES = 64 << 20
_UNIGRAM, _BPE = 1, 2
_KINDS = {1: TokenKind.NORMAL, 2: TokenKind.UNKNOWN, 3: TokenKind.CONTROL, 4: TokenKind.USER_DEFINED, 5: TokenKind.UNUSED,
          6: TokenKind.BYTE}  # fmt: skip

Value = int | bytes


@dataclass(frozen=True, slots=True)
class PieceFile:
    """What a ``tokenizer.model`` holds: pieces with their rules, and the ids of the tokens at a text's ends."""

    pieces: Pieces
    bos_id: int | None
    eos_id: int | None


def read_piece_file(path: Path) -> PieceFile:
    """Read one.

    Raises:
        StartupError: ``model_invalid``; ``model_unsupported`` for the kinds that are neither BPE nor unigram.
    """
    data = read_bytes(path, MAX_BYTES)
    if data is None:
        raise invalid(path, "the file is missing")
    try:
        return _piece_file(path, data)
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise invalid(path, f"is not a SentencePiece model ({error})") from error


def _piece_file(path: Path, data: bytes) -> PieceFile:
    texts: list[str] = []
    kinds: list[int] = []
    scores: list[float] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_message(value)))
            texts.append(_message(piece.get(1, b"")).decode())
            scores.append(struct.unpack("<f", _message(piece.get(2, bytes(4))))[0])
            kind = _KINDS.get(_whole(piece.get(3, 1)), TokenKind.NORMAL)
            if kind == TokenKind.BYTE and not BYTE.fullmatch(texts[-1]):
                raise ValueError(f"piece {texts[-1]!r} is said to be a byte")
            if kind == TokenKind.USER_DEFINED:
                # These are found in the text as it stands.
                texts[-1] = texts[-1].replace(SPACE, " ")
            kinds.append(int(kind))
        elif number == 2:
            trainer = dict(_fields(_message(value)))
        elif number == 3:
            normalizer = dict(_fields(_message(value)))
    if not texts:
        raise ValueError("it has no pieces")
    if len(set(texts)) != len(texts):
        raise ValueError("a piece comes twice")
    model = _whole(trainer.get(3, _UNIGRAM))
    if model not in (_UNIGRAM, _BPE):
        raise unsupported(path, f"its model_type is {model}; BPE (2) and unigram (1) are built")
    if _whole(trainer.get(24, 0)) or not _whole(normalizer.get(5, 1)):
        raise unsupported(path, "it writes spaces in another way than as U+2581 before words")
    unknown = next((text for text, kind in zip(texts, kinds, strict=True) if kind == TokenKind.UNKNOWN), None)
    pieces = Pieces(
        path,
        texts,
        kinds,
        scores,
        None,
        unigram=model == _UNIGRAM,
        unknown=unknown,
        space_prefix=bool(_whole(normalizer.get(3, 1))),
        single_spaces=bool(_whole(normalizer.get(4, 1))),
        characters=_message(normalizer.get(2, b"")),
    )
    control = {index for index, kind in enumerate(kinds) if kind == TokenKind.CONTROL}
    ends = (_signed(trainer.get(41, 1)), _signed(trainer.get(42, 2)))
    bos, eos = (number if number in control else None for number in ends)
    return PieceFile(pieces, bos, eos)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of a message's fields: whole numbers, or the bytes of anything else. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if at + length > len(data):
            raise ValueError("it ends within a field")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _signed(value: Value) -> int:
    """An int32, which is written in 64 bits when it is below zero."""
    number = _whole(value)
    return number - (1 << 64) if number >> 63 else number


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError("a field is not a number")
    return value


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a field is a number")
    return value
