"""Tokenizers from GGUF metadata (``tokenizer.ggml.*``): byte-level BPE (``gpt2``), SentencePiece BPE (``llama``, and ``gemma4``, which
lists its merges) and SentencePiece unigram (``t5``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, normalizers

from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFFile
from stretto.weights.pretokenizers import RULES
from stretto.weights.sentencepiece import BYTE, Pieces, add_tokens, bpe_model, build_pieces
from stretto.weights.tokenizer import Tokenizer, TokenizerFacts, TokenKind

_PREFIX = "tokenizer.ggml."
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
    builder = _BUILDERS.get(model or "")
    if builder is None:
        raise unsupported(path, f"tokenizer.ggml.model is {model!r}; built are {', '.join(_BUILDERS)}")
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
    add_tokens(base, texts, kinds)
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
            fused_id=_unknown_id(file, kinds) if spelling == "sentencepiece" else None,
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
        if kind == TokenKind.BYTE and not BYTE.fullmatch(texts[index]):
            raise invalid(file.file.path, f"token {index} {texts[index]!r} is said to be a byte")
    return kinds


def _token_id(file: GGUFFile, key: str, count: int) -> int | None:
    value = file.whole(_PREFIX + key)
    if value is None:
        return None
    if not 0 <= value < count:
        raise invalid(file.file.path, f"tokenizer.ggml.{key} is {value}, out of the {count} tokens")
    return value


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
    base = tokenizers.Tokenizer(bpe_model(path, texts, merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        base.normalizer = normalizers.NFC()
    base.pre_tokenizer = rule.build()
    base.decoder = decoders.ByteLevel()
    return base, "bytes", rule.add_bos, False


def _sentencepiece(
    file: GGUFFile, texts: Sequence[str], kinds: Sequence[int]
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    """BPE: BOS and a space before the text are wanted when the file does not say."""
    merges = _merges(file)
    return _pieces(file, texts, kinds, merges=merges, scores=[] if merges else _scores(file, len(texts)))


def _listed_merges(
    file: GGUFFile, texts: Sequence[str], kinds: Sequence[int]
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    """BPE over characters with the merges in the file, and no space before the text unless it says so."""
    merges = _merges(file)
    if merges is None:
        raise invalid(file.file.path, "the metadata key tokenizer.ggml.merges is missing")
    return _pieces(file, texts, kinds, merges=merges, space_prefix=False)


def _unigram(
    file: GGUFFile, texts: Sequence[str], kinds: Sequence[int]
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    """Unigram: BOS is not wanted when the file does not say, and spaces are cut down as SentencePiece does by default."""
    base, spelling, _, strips_space = _pieces(
        file, texts, kinds, scores=_scores(file, len(texts)), unigram=True, single_spaces=True
    )
    return base, spelling, False, strips_space


def _pieces(
    file: GGUFFile,
    texts: Sequence[str],
    kinds: Sequence[int],
    *,
    merges: list[tuple[str, str]] | None = None,
    scores: Sequence[float] = (),
    unigram: bool = False,
    space_prefix: bool = True,
    single_spaces: bool = False,
) -> tuple[tokenizers.Tokenizer, str, bool, bool]:
    """``space_prefix`` and ``single_spaces`` hold when the file does not say."""
    unknown = _unknown_id(file, kinds)
    prefix, single = file.flag(_PREFIX + "add_space_prefix"), file.flag(_PREFIX + "remove_extra_whitespaces")
    listed = file.array(_PREFIX + "precompiled_charsmap")
    prefix = space_prefix if prefix is None else prefix
    pieces = Pieces(
        file.file.path,
        texts,
        kinds,
        scores,
        merges,
        unigram=unigram,
        unknown=None if unknown is None else texts[unknown],
        space_prefix=prefix,
        single_spaces=single_spaces if single is None else single,
        characters=b"" if listed is None else _octets(file, listed.numbers()),
    )
    return build_pieces(pieces), "sentencepiece", True, prefix


def _unknown_id(file: GGUFFile, kinds: Sequence[int]) -> int | None:
    """What stands for text that no token covers; some files mark it as a control token."""
    marked = next((index for index, kind in enumerate(kinds) if kind == TokenKind.UNKNOWN), None)
    return _token_id(file, "unknown_token_id", len(kinds)) if marked is None else marked


def _octets(file: GGUFFile, numbers: np.ndarray[tuple[int, ...], np.dtype[Any]]) -> bytes:
    """Bytes that are written as numbers, signed or not."""
    if numbers.dtype.kind not in "iu" or (numbers.size and not -128 <= numbers.min() <= numbers.max() <= 255):
        raise invalid(file.file.path, "tokenizer.ggml.precompiled_charsmap is not made of bytes")
    return numbers.astype(np.int64).astype(np.uint8).tobytes()


def _scores(file: GGUFFile, count: int) -> list[float]:
    listed = file.array(_PREFIX + "scores")
    if listed is None:
        raise invalid(file.file.path, "the metadata key tokenizer.ggml.scores is missing")
    numbers = listed.numbers()
    if numbers.size != count or not bool(np.isfinite(numbers.astype(np.float64)).all()):
        raise invalid(file.file.path, f"tokenizer.ggml.scores does not give {count} finite numbers")
    scores: list[float] = numbers.tolist()
    return scores


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _listed_merges, "t5": _unigram}
