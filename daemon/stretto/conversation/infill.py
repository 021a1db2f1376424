"""Filling in the middle: how models are told what comes before and after the text that they shall write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.conversation.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """The control tokens of a family of models, by their texts.

    Attributes:
        order: ``prefix`` and ``suffix`` mean the two texts, everything else is a control token.
        ends: further control tokens that end the answer, beside those that end any.
    """

    order: tuple[str, ...]
    ends: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The control tokens that a vocabulary must have."""
        return tuple(text for text in self.order if text not in ("prefix", "suffix"))


_FORMATS = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma.
    InfillFormat(
        ("<|fim_prefix|>", "prefix", "<|fim_suffix|>", "suffix", "<|fim_middle|>"),
        ("<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>"),
    ),
    # StarCoder, StarCoder2, Granite, Refact.
    InfillFormat(
        ("<fim_prefix>", "prefix", "<fim_suffix>", "suffix", "<fim_middle>"),
        ("<fim_pad>", "<file_sep>", "<repo_name>"),
    ),
    # DeepSeek-Coder.
    InfillFormat(("<｜fim▁begin｜>", "prefix", "<｜fim▁hole｜>", "suffix", "<｜fim▁end｜>")),
    # Code Llama.
    InfillFormat(("▁<PRE>", "prefix", "▁<SUF>", "suffix", "▁<MID>"), ("▁<EOT>",)),
    # Codestral.
    InfillFormat(("[SUFFIX]", "suffix", "[PREFIX]", "prefix")),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """How one vocabulary is told to fill in the middle.

    Attributes:
        order: ``prefix`` and ``suffix`` mean the two texts, numbers are token ids.
        end_ids: tokens that end the answer, beside those that end any.
    """

    order: tuple[str | int, ...]
    end_ids: frozenset[int]

    def encode(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The prompt, from the tokens of both texts."""
        texts = {"prefix": prefix, "suffix": suffix}
        ids: list[int] = []
        for part in self.order:
            ids += [part] if isinstance(part, int) else texts[part]
        return ids


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """How a model with this vocabulary fills in the middle, or None where it has no tokens for that."""
    for known in _FORMATS:
        ids = {text: token_id for text in known.marks for token_id in _whole(tokenizer, text)}
        if len(ids) == len(known.marks):
            ends = frozenset(token_id for text in known.ends for token_id in _whole(tokenizer, text))
            return Infill(tuple(ids.get(part, part) for part in known.order), ends)
    return None


def _whole(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """The token that is this whole text and nothing else, or nothing."""
    ids = tokenizer.encode(text, allow_special=True)
    return ids if len(ids) == 1 and tokenizer.token_text(ids[0]) == text else ()
