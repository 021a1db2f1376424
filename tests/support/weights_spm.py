"""A small SentencePiece BPE model, trained here, and its vocabulary as GGUF metadata."""

from __future__ import annotations

import io
from pathlib import Path

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


def train_sentencepiece(
    *, dummy_prefix: bool = True, vocab_size: int = 480
) -> sentencepiece.SentencePieceProcessor:
    """A BPE model with byte fallback and no normalisation, as the llama family has it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        character_coverage=0.9999,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_sentencepiece_gguf(
    path: Path, processor: sentencepiece.SentencePieceProcessor, *, space_prefix: bool
) -> Path:
    """The vocabulary as converters write it, in a file without tensors."""
    ids = range(processor.get_piece_size())
    kinds = []
    for token in ids:
        if processor.is_unknown(token):
            kinds.append(2)
        elif processor.is_control(token):
            kinds.append(3)
        elif processor.is_byte(token):
            kinds.append(6)
        else:
            kinds.append(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([processor.id_to_piece(token) for token in ids])
    writer.add_token_scores([processor.get_score(token) for token in ids])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_unk_token_id(processor.unk_id())
    writer.add_add_space_prefix(space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
