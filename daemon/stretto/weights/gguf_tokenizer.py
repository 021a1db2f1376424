"""Tokenizers from GGUF metadata (``tokenizer.ggml.*``): byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFFile
from stretto.weights.pretokenizers import RULES
from stretto.weights.tokenizer import SPACE, Tokenizer, TokenizerFacts, TokenKind

_PREFIX = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def build_gguf_tokenizer(file: GGUFFile, vocab_size: int) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        file: the parsed file.
        vocab_size: rows of the embedding table; the vocabulary may not be larger.

    Raises:
        StartupError: ``model_unsupported`` naming the kind of vocabulary or pre-tokenizer; ``model_invalid``.
    """
    path, model = file.file.path, file.text(_PREFIX + "model")
    builder = {"gpt2": _byte_level, "llama": _sentencepiece}.get(model or "")
    if builder is None:
        raise unsupported(path, f"tokenizer.ggml.model is {model!r}; gpt2 and llama are built")
    listed = file.array(_PREFIX + "tokens")
    if listed is None or listed.count == 0:
        raise invalid(path, "the metadata key tokenizer.ggml.tokens is missing or empty")
    if listed.count > vocab_size:
        raise invalid(
            path, f"the vocabulary has {listed.count} tokens, but the embedding table {vocab_size} rows"
        )
    # Rows beyond the vocabulary are padding; a token without a text gets one that cannot be meant.
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(listed.strings())]
    if len(set(texts)) != len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise invalid(path, f"the token {twice!r} comes twice in tokenizer.ggml.tokens")
    kinds = _kinds(file, texts)
    base, spelling, add_bos, strips_space = builder(file, texts, kinds)
    for kind, special in (
        (TokenKind.CONTROL, True),
        (TokenKind.UNKNOWN, True),
        (TokenKind.USER_DEFINED, False),
    ):
        added = [
            AddedToken(text, special=special, normalized=False)
            for text, its_kind in zip(texts, kinds, strict=True)
            if its_kind == kind
        ]
        (base.add_special_tokens if special else base.add_tokens)(added)
    ids = {key: _token_id(file, key, len(texts)) for key in ("bos_token_id", *_END_KEYS)}
    wants_bos = file.flag(_PREFIX + "add_bos_token")
    padding = vocab_size - len(texts)
    return Tokenizer(
        base,
        TokenizerFacts(
            texts=[*texts, *([""] * padding)],
            kinds=[*kinds, *([int(TokenKind.UNUSED)] * padding)],
            spelling=spelling,
            bos_id=ids["bos_token_id"],
            eos_id=ids["eos_token_id"],
            end_ids=frozenset(found for key in _END_KEYS if (found := ids[key]) is not None),
            add_bos=add_bos if wants_bos is None else wants_bos,
            strips_space=strips_space,
        ),
    )


def _kinds(file: GGUFFile, texts: Sequence[str]) -> list[int]:
    listed = file.array(_PREFIX + "token_type")
    if listed is None:
        return [int(TokenKind.NORMAL)] * len(texts)
    numbers = listed.numbers()
    if numbers.size != len(texts) or numbers.dtype.kind not in "iu":
        raise invalid(file.file.path, f"tokenizer.ggml.token_type does not give {len(texts)} whole numbers")
    kinds: list[int] = numbers.tolist()
    known = {int(kind) for kind in TokenKind}
    if not known.issuperset(kinds):
        # An undefined kind (0, or one from a later version) is ordinary text to every reader.
        kinds = [kind if kind in known else int(TokenKind.NORMAL) for kind in kinds]
    for index, kind in enumerate(kinds):
        if kind == TokenKind.BYTE and not _BYTE.fullmatch(texts[index]):
            raise invalid(file.file.path, f"token {index} {texts[index]!r} is said to be a byte")
    return kinds


def _token_id(file: GGUFFile, key: str, count: int) -> int | None:
    value = file.whole(_PREFIX + key)
    if value is None:
        return None
    if not 0 <= value < count:
        raise invalid(file.file.path, f"tokenizer.ggml.{key} is {value}, out of the {count} tokens")
    return value


def _model(
    file: GGUFFile, texts: Sequence[str], merges: list[tuple[str, str]], **options: object
) -> models.BPE:
    vocabulary = {text: index for index, text in enumerate(texts)}
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    # The library raises bare Exception here.
    except Exception as error:
        raise invalid(file.file.path, f"tokenizer.ggml.merges does not fit the tokens: {error}") from error


def _merges(file: GGUFFile) -> list[tuple[str, str]] | None:
    """``tokenizer.ggml.merges`` as pairs: a space parts them (tokens hold none)."""
    listed = file.array(_PREFIX + "merges")
    if listed is None:
        return None
    texts = listed.strings()
    pairs = [(left, right) for text in texts for left, _, right in (text.partition(" "),) if left and right]
    if len(pairs) != len(texts):
        wrong = next(text for text in texts if not all(text.partition(" ")))
        raise invalid(
            file.file.path,
            f"tokenizer.ggml.merges has {wrong!r}, which is not two tokens with a space between",
        )
    return pairs


def _byte_level(
    file: GGUFFile, texts: Sequence[str], kinds: Sequence[int]
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    path, name = file.file.path, file.text(_PREFIX + "pre")
    if name is None:
        raise unsupported(
            path,
            "tokenizer.ggml.pre is missing (the file comes from an early converter), so how to cut text is unknown",
            remedy="Take a newer conversion of the model.",
        )
    rule = RULES.get(name)
    if rule is None:
        raise unsupported(
            path, f"tokenizer.ggml.pre is {name!r}", remedy=f"Known are {', '.join(sorted(RULES))}."
        )
    merges = _merges(file)
    if merges is None:
        raise invalid(path, "the metadata key tokenizer.ggml.merges is missing")
    base = tokenizers.Tokenizer(_model(file, texts, merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        base.normalizer = normalizers.NFC()
    base.pre_tokenizer = rule.build()
    base.decoder = decoders.ByteLevel()
    return base, "bytes", rule.add_bos, False


def _sentencepiece(
    file: GGUFFile, texts: Sequence[str], kinds: Sequence[int]
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    path = file.file.path
    if file.flag(_PREFIX + "remove_extra_whitespaces"):
        raise unsupported(path, "tokenizer.ggml.remove_extra_whitespaces is set, which would lose text")
    if file.metadata.get(_PREFIX + "precompiled_charsmap") is not None:
        raise unsupported(
            path, "tokenizer.ggml.precompiled_charsmap is not applied to this kind of vocabulary"
        )
    prefix = file.flag(_PREFIX + "add_space_prefix")
    prefix = True if prefix is None else prefix
    bytes_known = sum(kind == TokenKind.BYTE for kind in kinds)
    if bytes_known not in (0, 256):
        raise invalid(path, f"the vocabulary has {bytes_known} byte tokens, not 256")
    unknown = next((text for text, kind in zip(texts, kinds, strict=True) if kind == TokenKind.UNKNOWN), None)
    if unknown is None:
        at = _token_id(file, "unknown_token_id", len(texts))
        unknown = None if at is None else texts[at]
    if unknown is None and not bytes_known:
        raise invalid(
            path, "the vocabulary has neither byte tokens nor an unknown token, so it would lose text"
        )
    merges = _merges(file)
    if merges is None:
        merges = _merges_from_scores(texts, kinds, _scores(file, len(texts)))
    base = tokenizers.Tokenizer(
        _model(file, texts, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bool(bytes_known))
    )
    spaces = normalizers.Replace(" ", SPACE)
    base.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    return base, "sentencepiece", True, prefix


def _scores(file: GGUFFile, count: int) -> list[float]:
    listed = file.array(_PREFIX + "scores")
    if listed is None:
        raise invalid(file.file.path, "the metadata key tokenizer.ggml.scores is missing")
    numbers = listed.numbers()
    if numbers.size != count or not bool(np.isfinite(numbers.astype(np.float64)).all()):
        raise invalid(file.file.path, f"tokenizer.ggml.scores does not give {count} finite numbers")
    scores: list[float] = numbers.tolist()
    return scores


def _merges_from_scores(
    texts: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins whichever neighbours make the piece with the highest score. So each piece is a merge of every
    pair of pieces that it can be cut into, and merges rank by the score of what they make.
    """
    known = {text for text, kind in zip(texts, kinds, strict=True) if kind == TokenKind.NORMAL}
    made = [index for index, text in enumerate(texts) if len(text) > 1 and text in known]
    made.sort(key=lambda index: -scores[index])
    return [
        (left, right)
        for text in map(texts.__getitem__, made)
        for cut in range(1, len(text))
        if (left := text[:cut]) in known and (right := text[cut:]) in known
    ]
