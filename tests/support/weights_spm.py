"""Small SentencePiece models, trained here, and their vocabularies as GGUF metadata and as directories."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import sentencepiece

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs.",
    "What is the capital of France? The capital of France is Paris.",
    "def main():\n    for i in range(10):\n        print(i, i * i)",
    "aaaa aaa aa a bbbb bbb bb b abab ababab abcabcabc",
    "Größe, café, naïve, straße; 日本語 と 中文 と 한국어",
    "1 22 333 4444 55555 666666, 3.14159 and 2.71828",
    "   indented    text     with      runs       of        spaces",
)
CONTROL, WHOLE = "<|turn|>", "<tool_é>"
"""A control token, and one that is found whole in every text, of the models that are asked for both."""


def train_sentencepiece(
    *, model_type: str = "bpe", dummy_prefix: bool = True, vocab_size: int = 480, **options: Any
) -> sentencepiece.SentencePieceProcessor:
    """A model with byte fallback and no normalisation, as the llama family has it, unless ``options`` say otherwise."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS * 20),
        model_writer=model,
        model_type=model_type,
        vocab_size=vocab_size,
        add_dummy_prefix=dummy_prefix,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        character_coverage=0.9999,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **{
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            **options,
        },
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_kinds(processor: sentencepiece.SentencePieceProcessor, whole: Sequence[str] = ()) -> list[int]:
    """The kind of each piece as GGUF numbers them; ``whole`` are the user-defined ones."""
    kinds = []
    for token in range(processor.get_piece_size()):
        if processor.is_unknown(token):
            kinds.append(2)
        elif processor.is_control(token):
            kinds.append(3)
        elif processor.is_byte(token):
            kinds.append(6)
        else:
            kinds.append(4 if processor.id_to_piece(token) in whole else 1)
    return kinds


def write_sentencepiece_gguf(
    path: Path,
    processor: sentencepiece.SentencePieceProcessor,
    *,
    space_prefix: bool,
    model: str = "llama",
    whole: Sequence[str] = (),
    merges: Sequence[str] = (),
    single_spaces: bool | None = None,
    characters: bytes = b"",
) -> Path:
    """The vocabulary as converters write it, in a file without tensors."""
    ids = range(processor.get_piece_size())
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    texts = [processor.id_to_piece(token) for token in ids]
    # Of those that are found whole, converters write spaces as they stand in a text.
    writer.add_token_list([text.replace("▁", " ") if text in whole else text for text in texts])
    if merges:
        writer.add_token_merges(list(merges))
    else:
        writer.add_token_scores([processor.get_score(token) for token in ids])
    writer.add_token_types(piece_kinds(processor, whole))
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_unk_token_id(processor.unk_id())
    writer.add_add_space_prefix(space_prefix)
    if single_spaces is not None:
        writer.add_remove_extra_whitespaces(single_spaces)
    if characters:
        writer.add_precompiled_charsmap(characters)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
