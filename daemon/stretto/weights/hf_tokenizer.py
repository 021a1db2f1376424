"""Tokenizers from a directory's tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from stretto.weights.faults import invalid, unsupported
from stretto.weights.jsonfile import read_bytes
from stretto.weights.tokenizer import Tokenizer, TokenizerFacts, TokenKind

MAX_TOKENIZER_BYTES = 256 << 20
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def read_tokenizer_json(directory: Path, most_bytes: int) -> tokenizers.Tokenizer:
    """The tokenizer of a directory's tokenizer.json, which neither cuts texts nor fills them up.

    Raises:
        StartupError: ``model_invalid``: there is none, it is larger than ``most_bytes``, or it is no tokenizer.
    """
    where = directory / "tokenizer.json"
    data = read_bytes(where, most_bytes)
    if data is None:
        raise invalid(directory, "the file tokenizer.json is missing")
    try:
        base = tokenizers.Tokenizer.from_buffer(data)
    # The library raises bare Exception here.
    except Exception as error:
        raise invalid(where, f"is not a tokenizer: {error}") from error
    # Both are saved with some models, and would cut texts and fill them up without a word.
    base.no_truncation()
    base.no_padding()
    return base


def build_hf_tokenizer(
    path: Path, settings: Mapping[str, Any], end_ids: Sequence[int], vocab_size: int
) -> Tokenizer:
    """Build the tokenizer of a model directory.

    Args:
        path: the directory.
        settings: contents of tokenizer_config.json.
        end_ids: ``eos_token_id`` of the model's configuration, the first being the default.
        vocab_size: rows of the embedding table; no token may lie beyond.

    Raises:
        StartupError: ``model_unsupported`` naming the decoder; ``model_invalid``.
    """
    where = path / "tokenizer.json"
    base = read_tokenizer_json(path, MAX_TOKENIZER_BYTES)
    bos, eos = named_token(path, settings, "bos_token"), named_token(path, settings, "eos_token")
    for text in (bos, eos):
        if text is not None and base.token_to_id(text) is not None:
            base.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    spelling, strips_space = _spelling(where, base)
    texts = [""] * vocab_size
    kinds = [int(TokenKind.UNUSED)] * vocab_size
    for text, token_id in base.get_vocab(with_added_tokens=True).items():
        if token_id >= vocab_size:
            raise invalid(
                where, f"token {token_id} {text!r} lies beyond the {vocab_size} rows of the embedding table"
            )
        texts[token_id] = text
        byte = spelling == "sentencepiece" and _BYTE.fullmatch(text)
        kinds[token_id] = int(TokenKind.BYTE if byte else TokenKind.NORMAL)
    for token_id, token in base.get_added_tokens_decoder().items():
        kinds[token_id] = int(TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED)
    bos_id = None if bos is None else base.token_to_id(bos)
    eos_id = None if eos is None else base.token_to_id(eos)
    known_ends = [token_id for token_id in end_ids if 0 <= token_id < vocab_size and texts[token_id]]
    if eos_id is None and known_ends:
        eos_id = known_ends[0]
    wants_bos = settings.get("add_bos_token")
    if not isinstance(wants_bos, bool):
        # Without the setting, the post-processor decides.
        wants_bos = bos_id is not None and bos_id in base.encode("", add_special_tokens=True).ids
    return Tokenizer(
        base,
        TokenizerFacts(
            texts=texts,
            kinds=kinds,
            spelling=spelling,
            bos_id=bos_id,
            eos_id=eos_id,
            end_ids=frozenset(known_ends),
            add_bos=wants_bos,
            strips_space=strips_space,
        ),
    )


def named_token(path: Path, settings: Mapping[str, Any], key: str) -> str | None:
    """A token's text in tokenizer_config.json: a string, an object with ``content``, or null."""
    value = settings.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise invalid(path / "tokenizer_config.json", f"{key} is {value!r}, not a text")


def _spelling(where: Path, base: tokenizers.Tokenizer) -> tuple[str, bool]:
    """(spelling, whether decoding takes one leading space away), from the decoder that the file describes."""
    if base.decoder is None:
        raise unsupported(where, "has no decoder, so how tokens spell bytes is unknown")
    described = json.loads(base.decoder.__getstate__())
    steps = described["decoders"] if described["type"] == "Sequence" else [described]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return "bytes", False
    if "Metaspace" in kinds or any(
        step["type"] == "Replace" and step.get("pattern") == {"String": "▁"} and step.get("content") == " "
        for step in steps
    ):
        first = next((step for step in steps if step["type"] == "Metaspace"), None)
        stripped = any(
            step["type"] == "Strip" and step.get("content") == " " and step.get("start") for step in steps
        )
        return "sentencepiece", stripped or (
            first is not None and first.get("prepend_scheme", "always") != "never"
        )
    raise unsupported(
        where, f"has a decoder of kind {' + '.join(kinds)}; ByteLevel and SentencePiece's are known"
    )
