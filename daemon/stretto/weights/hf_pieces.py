"""Tokenizers from a directory that has a ``tokenizer.model`` of SentencePiece's and no tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.weights.faults import invalid
from stretto.weights.hf_tokenizer import named_token
from stretto.weights.jsonfile import read_object
from stretto.weights.piece_file import read_piece_file
from stretto.weights.sentencepiece import add_tokens, build_pieces
from stretto.weights.tokenizer import Tokenizer, TokenizerFacts, TokenKind

PIECE_FILE = "tokenizer.model"


def build_piece_tokenizer(
    path: Path, settings: Mapping[str, Any], end_ids: Sequence[int], vocab_size: int
) -> Tokenizer:
    """As ``build_hf_tokenizer``, from ``tokenizer.model`` and the tokens that tokenizer_config.json or added_tokens.json adds.

    BOS is wanted before every prompt when ``add_bos_token`` does not say otherwise, and there is one, and the vocabulary is BPE.

    Raises:
        StartupError: ``model_unsupported``; ``model_invalid``.
    """
    where = path / PIECE_FILE
    file = read_piece_file(where)
    texts, kinds = list(file.pieces.texts), list(file.pieces.kinds)
    for token_id, (text, special) in sorted(_added(path, settings).items()):
        if token_id < len(texts) and texts[token_id] != text:
            raise invalid(
                path, f"token {token_id} is {texts[token_id]!r} in {PIECE_FILE} and {text!r} besides"
            )
        if token_id >= vocab_size:
            raise invalid(
                path, f"token {token_id} {text!r} lies beyond the {vocab_size} rows of the embedding table"
            )
        while len(texts) <= token_id:
            texts.append(f"[EMPTY_{len(texts)}]")
            kinds.append(int(TokenKind.UNUSED))
        texts[token_id] = text
        kinds[token_id] = int(TokenKind.CONTROL if special else TokenKind.USER_DEFINED)
    if len(texts) > vocab_size:
        raise invalid(where, f"it has {len(texts)} pieces, and the embedding table {vocab_size} rows")
    if len(set(texts)) != len(texts):
        raise invalid(path, "two tokens have the same text")
    ids = {text: index for index, text in enumerate(texts)}
    bos, eos = named_token(path, settings, "bos_token"), named_token(path, settings, "eos_token")
    bos_id = file.bos_id if bos is None else ids.get(bos)
    eos_id = file.eos_id if eos is None else ids.get(eos)
    base = build_pieces(file.pieces.extended(texts, kinds))
    add_tokens(base, texts, kinds)
    wants_bos = settings.get("add_bos_token")
    padding = vocab_size - len(texts)
    return Tokenizer(
        base,
        TokenizerFacts(
            texts=[*texts, *([""] * padding)],
            kinds=[*kinds, *([int(TokenKind.UNUSED)] * padding)],
            spelling="sentencepiece",
            bos_id=bos_id,
            eos_id=eos_id,
            end_ids=frozenset(token for token in end_ids if 0 <= token < len(texts)),
            add_bos=wants_bos if isinstance(wants_bos, bool) else not file.pieces.unigram,
            strips_space=file.pieces.space_prefix,
            fused_id=None if file.pieces.unknown is None else ids.get(file.pieces.unknown),
        ),
    )


def _added(path: Path, settings: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """By id, text and whether it is a control token: tokenizer_config.json's list, else that of added_tokens.json (all control)."""
    listed = settings.get("added_tokens_decoder")
    if listed is None:
        older = read_object(path / "added_tokens.json") or {}
        if not all(type(token_id) is int and token_id >= 0 for token_id in older.values()):
            raise invalid(path / "added_tokens.json", "a token has no id")
        return {token_id: (text, True) for text, token_id in older.items()}
    found = {}
    for key, token in listed.items() if isinstance(listed, dict) else [("", listed)]:
        text = token.get("content") if isinstance(token, dict) else None
        if not key.isdecimal() or not isinstance(text, str) or not text:
            raise invalid(path / "tokenizer_config.json", f"added_tokens_decoder has {key!r}: {token!r}")
        found[int(key)] = (text, bool(token.get("special")))
    return found
