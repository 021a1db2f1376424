"""SentencePiece vocabularies, BPE and unigram, from GGUF metadata, ``tokenizer.model`` and tokenizer.json, against the library."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from stretto.errors import StartupError
from stretto.weights import Tokenizer
from stretto.weights.gguf import GGUFFile
from stretto.weights.gguf_tokenizer import build_gguf_tokenizer
from stretto.weights.hf_pieces import build_piece_tokenizer
from stretto.weights.hf_tokenizer import build_hf_tokenizer
from support.weights_spm import CONTROL, WHOLE, train_sentencepiece, write_sentencepiece_gguf
from support.weights_text import HARD_TEXTS, random_texts

# Runs and repeats are where a merge could be taken at another place than SentencePiece takes it.
REPEATS = ["".join(letters) for size in range(1, 8) for letters in itertools.product("ab", repeat=size)]
RUNS = [character * size + "b" for character in " a\n=" for size in range(40)]
TEXTS = [*HARD_TEXTS, *random_texts(2, 800), *REPEATS, *RUNS]
KINDS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe-bare": {"dummy_prefix": False},
    "bpe-tokens": {"dummy_prefix": False, "control_symbols": [CONTROL], "user_defined_symbols": [WHOLE, "▁▁", "\n\n"]},
    "bpe-nfkc": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram", "vocab_size": 420},
    "unigram-bare": {"model_type": "unigram", "vocab_size": 420, "dummy_prefix": False},
    "unigram-tokens": {
        "model_type": "unigram", "vocab_size": 420, "dummy_prefix": False, "control_symbols": [CONTROL], "user_defined_symbols": [WHOLE, "▁▁"],
    },
    "unigram-unknown": {
        "model_type": "unigram", "vocab_size": 160, "byte_fallback": False,
        "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True,
    },
}  # fmt: skip


LONG_CLUSTER = re.compile("[^\\x00-\\x7f]\u200d|e\u0301.?\u200d")
"""Several characters that make one sign, of six bytes and more: ``tokenizers`` looks up their parts alone, SentencePiece the pairs too."""


def score(reference: sentencepiece.SentencePieceProcessor, ids: list[int]) -> float:
    return sum(reference.get_score(token) for token in ids)


def from_gguf(path: Path, kind: str, reference: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    options = KINDS[kind]
    proto = sentencepiece_model_pb2.ModelProto.FromString(reference.serialized_model_proto())
    write_sentencepiece_gguf(
        path / "spm.gguf",
        reference,
        space_prefix=options.get("dummy_prefix", True),
        model="t5" if kind.startswith("unigram") else "llama",
        whole=options.get("user_defined_symbols", ()),
        single_spaces=options.get("remove_extra_whitespaces", False),
        characters=proto.normalizer_spec.precompiled_charsmap,
    )
    return build_gguf_tokenizer(GGUFFile(path / "spm.gguf"), reference.get_piece_size())


def from_directory(path: Path, reference: sentencepiece.SentencePieceProcessor, **settings: Any) -> Tokenizer:
    (path / "tokenizer.model").write_bytes(reference.serialized_model_proto())
    return build_piece_tokenizer(path, settings, (2,), reference.get_piece_size() + 8)


@pytest.mark.parametrize("source", ["gguf", "directory"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_ids_and_texts_are_those_of_the_library(tmp_path: Path, kind: str, source: str) -> None:
    reference = train_sentencepiece(**KINDS[kind])
    tokenizer = (
        from_gguf(tmp_path, kind, reference) if source == "gguf" else from_directory(tmp_path, reference)
    )
    normalised = "normalization_rule_name" in KINDS[kind]
    prefix = KINDS[kind].get("dummy_prefix", True)
    for text in TEXTS:
        if normalised and LONG_CLUSTER.search(text):
            continue
        if "tokens" in kind and "▁" in text:
            continue  # a ▁ beside spaces would make a token of spaces, which are looked for before they are spelled so
        ids, wanted = tokenizer.encode(text, allow_special=False), reference.encode(text)
        if ids != wanted and kind.startswith("unigram"):
            # Of cuts whose scores add up to the same, either is right.
            assert score(reference, ids) == pytest.approx(score(reference, wanted), abs=1e-4), text
            assert reference.decode(ids) == reference.decode(wanted)
        else:
            assert ids == wanted, text
        if normalised:
            shown = reference.decode([token for token in ids if not reference.is_unknown(token)])
            assert tokenizer.decode(ids).lstrip(" ") == shown
            continue
        shown = text.replace("▁", " ")
        assert tokenizer.decode(ids) == shown
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined == (" " + shown if prefix and text else shown)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids) == (1, 2, {2})
    assert tokenizer.add_bos is kind.startswith("bpe")
    assert tokenizer.strips_space is prefix


@pytest.mark.parametrize("kind", ["bpe-tokens", "unigram-tokens", "unigram-unknown"])
def test_control_tokens_in_text(tmp_path: Path, kind: str) -> None:
    reference = train_sentencepiece(**KINDS[kind])
    for tokenizer in (from_gguf(tmp_path, kind, reference), from_directory(tmp_path, reference)):
        assert tokenizer.encode("</s>", allow_special=True) == [2]
        names = ["<s>", "</s>", "<unk>", *([CONTROL] if "tokens" in kind else []), "<0x41>"]
        for name in names:
            ids = tokenizer.encode(f"a{name}b", allow_special=False)
            assert ids == reference.encode(f"a{name}b")
            assert not {reference.piece_to_id(CONTROL) or 1, 1, 2, reference.piece_to_id("<0x41>") or 1} & {
                *ids
            }
        if "tokens" in kind:
            control, whole = reference.piece_to_id(CONTROL), reference.piece_to_id(WHOLE)
            assert tokenizer.encode(f"a{CONTROL}b", allow_special=True)[1:2] == [control]
            for allow in (True, False):
                assert whole in tokenizer.encode(f"a{WHOLE}b", allow_special=allow)
            assert tokenizer.token_bytes(whole) == WHOLE.encode()
            assert tokenizer.token_bytes(control) == b""


def test_merges_that_a_file_lists(tmp_path: Path) -> None:
    """As Gemma 4's files: the merges are there, no space comes first, and characters are not spelled as bytes."""
    reference = train_sentencepiece(dummy_prefix=False)
    from stretto.weights.sentencepiece import _merges_from_scores
    from support.weights_spm import piece_kinds

    ids = range(reference.get_piece_size())
    pairs = _merges_from_scores(
        [reference.id_to_piece(token) for token in ids],
        piece_kinds(reference),
        [reference.get_score(token) for token in ids],
    )
    path = write_sentencepiece_gguf(
        tmp_path / "spm.gguf", reference, space_prefix=False, model="gemma4", merges=[" ".join(pair) for pair in pairs]
    )  # fmt: skip
    tokenizer = build_gguf_tokenizer(GGUFFile(path), reference.get_piece_size())
    for text in TEXTS:
        ids_found = tokenizer.encode(text, allow_special=False)
        assert ids_found == reference.encode(text), text
        assert tokenizer.decode(ids_found) == text.replace("▁", " ")


def test_tokens_that_a_directory_adds(tmp_path: Path) -> None:
    reference = train_sentencepiece()
    size = reference.get_piece_size()
    added = {
        "1": {"content": "<s>", "special": True},
        str(size + 1): {"content": "<|im_end|>", "special": True},
        str(size + 3): {"content": "<think>", "special": False},
    }
    tokenizer = from_directory(
        tmp_path, reference, added_tokens_decoder=added, eos_token={"content": "<|im_end|>"}, add_bos_token=False
    )  # fmt: skip
    assert tokenizer.encode("<|im_end|><think>", allow_special=True)[-2:] == [size + 1, size + 3]
    plain = tokenizer.encode("<|im_end|><think>", allow_special=False)
    assert size + 1 not in plain
    assert plain[-1] == size + 3
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, size + 1, False)
    assert tokenizer.end_ids == {2, size + 1}
    assert tokenizer.token_bytes(size + 2) == tokenizer.token_bytes(size + 5) == b""
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|older|>": size}))
    older = from_directory(tmp_path, reference)
    assert older.encode("<|older|>", allow_special=True) == [size]
    for listed, words in (
        ({"1": {"content": "<bos>"}}, "token 1 is '<s>' in tokenizer.model and '<bos>' besides"),
        ({"x": {"content": "a"}}, "added_tokens_decoder has 'x'"),
        ({"7": None}, "added_tokens_decoder has '7'"),
        ([], "added_tokens_decoder has ''"),
        ({str(size + 99): {"content": "<z>"}}, "lies beyond the"),
        ({str(size): {"content": "<s>"}}, "two tokens have the same text"),
    ):
        with pytest.raises(StartupError, match=words):
            from_directory(tmp_path, reference, added_tokens_decoder=listed)


def changed(reference: sentencepiece.SentencePieceProcessor, **values: Any) -> bytes:
    proto = sentencepiece_model_pb2.ModelProto.FromString(reference.serialized_model_proto())
    for name, value in values.items():
        part, _, field = name.partition("__")
        setattr(getattr(proto, part), field, value)
    written: bytes = proto.SerializeToString()
    return written


def test_a_tokenizer_model_that_cannot_be_used(tmp_path: Path) -> None:
    reference = train_sentencepiece()
    whole = reference.serialized_model_proto()
    twice = sentencepiece_model_pb2.ModelProto.FromString(whole)
    twice.pieces[7].piece = twice.pieces[8].piece
    no_byte = sentencepiece_model_pb2.ModelProto.FromString(whole)
    no_byte.pieces[3].piece = "byte"
    cases = [
        (whole[:-3], "model_invalid", "is not a SentencePiece model"),
        (b"", "model_invalid", "it has no pieces"),
        (b"IQ== 0\nIg== 1\n", "model_invalid", "is not a SentencePiece model"),
        (b"\xff" * 40, "model_invalid", "is not a SentencePiece model"),
        (twice.SerializeToString(), "model_invalid", "a piece comes twice"),
        (no_byte.SerializeToString(), "model_invalid", "'byte' is said to be a byte"),
        (changed(reference, trainer_spec__model_type=3), "model_unsupported", "its model_type is 3"),
        (
            changed(reference, trainer_spec__treat_whitespace_as_suffix=True),
            "model_unsupported",
            "writes spaces in another way",
        ),
        (
            changed(reference, normalizer_spec__precompiled_charsmap=b"abcd"),
            "model_invalid",
            "table of characters is broken",
        ),
    ]
    for data, code, words in cases:
        (tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(StartupError, match=words) as caught:
            build_piece_tokenizer(tmp_path, {}, (), 1000)
        assert caught.value.code == code
    (tmp_path / "tokenizer.model").write_bytes(whole)
    with pytest.raises(StartupError, match="and the embedding table 100 rows"):
        build_piece_tokenizer(tmp_path, {}, (), 100)
    (tmp_path / "tokenizer.model").write_bytes(changed(reference, trainer_spec__bos_id=-1))
    without = build_piece_tokenizer(tmp_path, {}, (), 1000)
    assert (without.bos_id, without.add_bos) == (None, False)


def test_a_sentencepiece_directory(tmp_path: Path) -> None:
    """The decoder of the llama family's tokenizer.json: replace, byte fallback, fuse, strip one space."""
    from tokenizers import decoders, models, normalizers

    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "▁hi"]
    base = tokenizers.Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(texts)},
            merges=[("▁", "h"), ("▁h", "i")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    base.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    base.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    base.add_special_tokens(["<unk>", "<s>", "</s>"])
    base.save(str(tmp_path / "tokenizer.json"))
    tokenizer = build_hf_tokenizer(tmp_path, {"bos_token": "<s>", "eos_token": "</s>"}, (), 300)
    for text in ("hi hi", "hé😀", " h", "<s>"):
        ids = tokenizer.encode(text, allow_special=False)
        assert tokenizer.decode(ids) == base.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == f" {text}".encode()
    assert tokenizer.strips_space
