"""How GGUF's names for pre-tokenizers cut text, against those of ``transformers`` and another engine of regular expressions."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.weights.pretokenizers import RULES, Rule
from stretto.weights.tokenizer import byte_characters
from support.weights_text import HARD_TEXTS, random_texts

TEXTS = [*HARD_TEXTS, *random_texts(1, 200)]
NAMES = list({rule: name for name, rule in RULES.items()}.values())
"""One name a rule."""
EMBEDDERS = {"jina-v5-nano"}
"""Names that transformers knows, of models that write no text."""


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_a_text_is_in_one_piece(name: str) -> None:
    of = byte_characters()
    cut = RULES[name].build()
    for text in TEXTS:
        pieces = [piece for piece, _ in cut.pre_tokenize_str(text)]
        assert bytes(of[character] for piece in pieces for character in piece).decode() == text
        assert "" not in pieces


def cut_by_regex(rule: Rule, text: str) -> list[str]:
    """The same with the ``regex`` package: matches and what lies between them, pattern after pattern."""
    regex = pytest.importorskip("regex", reason="the regex package is not installed")
    pieces = [text] if text else []
    for pattern in rule.patterns:
        plain = regex.sub(r"\\x\{(\w+)\}", lambda match: regex.escape(chr(int(match[1], 16))), pattern)
        found = regex.compile(plain, regex.VERSION1 | regex.MULTILINE)
        cut = []
        for piece in pieces:
            last = 0
            for match in found.finditer(piece):
                cut += [piece[last : match.start()], match[0]]
                last = match.end()
            cut.append(piece[last:])
        pieces = [piece for piece in cut if piece]
    return pieces


@pytest.mark.parametrize("name", NAMES)
def test_two_engines_cut_alike(name: str) -> None:
    characters = {byte: character for character, byte in byte_characters().items()}
    rule = RULES[name]
    cut = rule.build()
    for text in TEXTS:
        if r"\b" in "".join(rule.patterns) and "\u200d" in text:
            continue  # where a word ends beside a joiner, the two do not agree; the models' own is ours
        wanted = ["".join(characters[byte] for byte in piece.encode()) for piece in cut_by_regex(rule, text)]
        assert [piece for piece, _ in cut.pre_tokenize_str(text)] == wanted, text


@pytest.mark.torch
def test_they_are_those_that_transformers_reads_gguf_files_with() -> None:
    from tokenizers import Regex, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    assert GGUF_PRE_TOKENIZER_SPLITS.keys() - EMBEDDERS <= RULES.keys()
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items():
        if name in EMBEDDERS:
            continue
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        wanted, found = pre_tokenizers.Sequence([split, bytes_only]), RULES[name].build()
        for text in TEXTS:
            assert found.pre_tokenize_str(text) == wanted.pre_tokenize_str(text), (name, text)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("gpt-2", "gpt2", "GPT2Tokenizer"),
        ("mpt", "gpt_neox", "GPTNeoXTokenizer"),
        ("olmo", "gpt_neox", "GPTNeoXTokenizer"),
        ("command-r", "cohere", "CohereTokenizer"),
        ("qwen2", "qwen2", "Qwen2Tokenizer"),
        ("qwen35", "qwen3_5", "Qwen3_5Tokenizer"),
    ],
)
def test_they_are_those_of_the_models_own_tokenizers(name: str, family: str, kind: str) -> None:
    """Normal form included."""
    import importlib

    module = importlib.import_module(f"transformers.models.{family}.tokenization_{family}")
    reference: Any = getattr(module, kind)(vocab={"<pad>": 0}, merges=[]).backend_tokenizer
    rule, cut = RULES[name], RULES[name].build()
    assert rule.nfc is (reference.normalizer is not None)
    for text in TEXTS:
        shown = reference.normalizer.normalize_str(text) if rule.nfc else text
        wanted = [piece for piece, _ in reference.pre_tokenizer.pre_tokenize_str(shown)]
        assert [piece for piece, _ in cut.pre_tokenize_str(shown)] == wanted, text
