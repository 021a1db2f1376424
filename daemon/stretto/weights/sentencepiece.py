"""SentencePiece vocabularies, BPE and unigram, as tokenizers; the same for GGUF metadata and for ``tokenizer.model`` files.

The rules are those of the SentencePiece library: a text is normalised (a table of characters if the vocabulary brings one, runs of
spaces if it wants so), begins with a space if it wants so, and spaces become U+2581. Then BPE joins neighbours, best score first;
unigram takes the cut whose scores add up to the most. What no piece covers becomes bytes, or one unknown token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer

from stretto.weights.faults import invalid
from stretto.weights.tokenizer import SPACE, TokenKind

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NEVER = 100.0
"""By how much more unlikely than its letters one by one a piece is that no text may become."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary and its rules.

    Attributes:
        path: of its file, for messages.
        texts: each piece, by id; no two are the same.
        kinds: the kind of each, a ``TokenKind``.
        scores: of each; may be empty for BPE that lists its merges.
        merges: pairs, best first; None when the scores tell them.
        unigram: it is unigram, else BPE.
        unknown: the text of the unknown token, if there is one.
        space_prefix: a text begins with a space of its own.
        single_spaces: spaces at a text's ends go, and of several within it one stays.
        characters: SentencePiece's compiled table of characters that are replaced; empty for none.
    """

    path: Path
    texts: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[tuple[str, str]] | None
    unigram: bool
    unknown: str | None
    space_prefix: bool
    single_spaces: bool
    characters: bytes

    def extended(self, texts: Sequence[str], kinds: Sequence[int]) -> Pieces:
        """The same with other kinds, and tokens that were added behind the last piece."""
        scores = [*self.scores, *([0.0] * (len(texts) - len(self.scores)))]
        return replace(self, texts=texts, kinds=kinds, scores=scores)


def build_pieces(pieces: Pieces) -> tokenizers.Tokenizer:
    """The tokenizer without its added tokens (see ``add_tokens``).

    Raises:
        StartupError: ``model_invalid``: bytes or the unknown token are missing, merges or the table of characters are broken.
    """
    known = sum(kind == TokenKind.BYTE for kind in pieces.kinds)
    if known not in (0, 256):
        raise invalid(pieces.path, f"the vocabulary has {known} byte tokens, not 256")
    if pieces.unknown is None and (pieces.unigram or not known):
        raise invalid(
            pieces.path, "the vocabulary has neither byte tokens nor an unknown token, so it would lose text"
        )
    base = _unigram(pieces, bytes_known=known > 0) if pieces.unigram else _bpe(pieces, bytes_known=known > 0)
    steps: list[Normalizer] = []
    if pieces.characters:
        try:
            steps.append(normalizers.Precompiled(pieces.characters))
        # The library raises bare Exception here.
        except Exception as error:
            raise invalid(pieces.path, f"its table of characters is broken: {error}") from error
    if pieces.single_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.space_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    base.normalizer = normalizers.Sequence(steps)
    return base


def add_tokens(base: tokenizers.Tokenizer, texts: Sequence[str], kinds: Sequence[int]) -> None:
    """Add control tokens and those that are always found whole in a text; in id order, as they may come to be numbered."""
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


def bpe_model(
    path: Path, texts: Sequence[str], merges: Sequence[tuple[str, str]], **options: object
) -> models.BPE:
    """A BPE model. Raises StartupError ``model_invalid`` for merges that are not of the vocabulary."""
    vocabulary = {text: index for index, text in enumerate(texts)}
    try:
        return models.BPE(vocab=vocabulary, merges=list(merges), **options)
    # The library raises bare Exception here.
    except Exception as error:
        raise invalid(path, f"its merges do not fit the tokens: {error}") from error


def _bpe(pieces: Pieces, *, bytes_known: bool) -> tokenizers.Tokenizer:
    merges = pieces.merges
    if merges is None:
        merges = _merges_from_scores(pieces.texts, pieces.kinds, pieces.scores)
    return tokenizers.Tokenizer(
        bpe_model(
            pieces.path,
            pieces.texts,
            merges,
            unk_token=pieces.unknown,
            fuse_unk=True,
            byte_fallback=bytes_known,
        )
    )


def _unigram(pieces: Pieces, *, bytes_known: bool) -> tokenizers.Tokenizer:
    """The library finds every piece of its vocabulary in a text, so those that must not be found are made most unlikely.

    That is enough as long as their letters are pieces too. Where one of them is not, the text is cut behind the first letter of what
    would otherwise be found.
    """
    usable = [kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED) for kind in pieces.kinds]
    least = min((score for score, used in zip(pieces.scores, usable, strict=True) if used), default=0.0)
    letters = {text for text, used in zip(pieces.texts, usable, strict=True) if used and len(text) == 1}
    vocabulary, barred = [], []
    for text, score, used in zip(pieces.texts, pieces.scores, usable, strict=True):
        vocabulary.append((text, score if used else min(least, -1.0) * len(text) - _NEVER))
        if not used and len(text) > 1 and not letters.issuperset(text):
            barred.append(text)
    assert pieces.unknown is not None
    unknown_id = list(pieces.texts).index(pieces.unknown)
    base = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=unknown_id, byte_fallback=bytes_known))
    if barred:
        cuts = "|".join(f"{_escaped(text[0])}(?={_escaped(text[1:])})" for text in barred)
        base.pre_tokenizer = pre_tokenizers.Split(Regex(cuts), behavior="isolated")
    return base


def _escaped(text: str) -> str:
    """As it stands, to Oniguruma."""
    return "".join(f"\\x{{{ord(character):X}}}" for character in text)


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
