"""Tokenizers against those of ``transformers``, ``tokenizers`` and ``sentencepiece``."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from stretto.errors import InvalidRequest, StartupError
from stretto.weights import Tokenizer, load_tokenizer, open_model
from stretto.weights.gguf import GGUFFile
from stretto.weights.gguf_tokenizer import build_gguf_tokenizer
from stretto.weights.hf_tokenizer import build_hf_tokenizer
from stretto.weights.tokenizer import byte_characters
from support.weights_text import HARD_TEXTS, random_texts
from support.weights_tiny import SPECIAL_TOKENS, byte_alphabet, tiny_gguf, tiny_hf_tokenizer, tiny_vocabulary

TEXTS = [*HARD_TEXTS, *random_texts(1, 400)]


def tiny(tmp_path: Path, **metadata: Any) -> Tokenizer:
    metadata = {"tokenizer." + key.replace("__", "."): value for key, value in metadata.items()}
    return load_tokenizer(open_model(tiny_gguf(tmp_path / "t.gguf", metadata=metadata)))


def hf(
    path: Path, settings: dict[str, Any] | None = None, ends: tuple[int, ...] = (), size: int = 400
) -> Tokenizer:
    if settings is None:
        settings = json.loads((path / "tokenizer_config.json").read_text())
    return build_hf_tokenizer(path, settings, ends, size)


def test_the_byte_table_is_gpt2s() -> None:
    assert byte_characters() == {character: byte for byte, character in enumerate(byte_alphabet())}
    assert set(byte_characters()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize("kind", ["smollm", "qwen2"])
def test_gguf_and_tokenizer_json_agree_with_the_library(tmp_path: Path, kind: str) -> None:
    tiny_hf_tokenizer(tmp_path, kind=kind)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    from_hf, from_gguf = hf(tmp_path), tiny(tmp_path, ggml__pre=kind)
    for text in TEXTS:
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert from_hf.encode(text, allow_special=True) == wanted
        assert from_gguf.encode(text, allow_special=True) == wanted
        assert from_hf.encode(text, allow_special=False) == from_gguf.encode(text, allow_special=False)


def test_tokens_join_to_the_text(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    for text in TEXTS:
        ids = tokenizer.encode(text, allow_special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([]) == ""
    half = tokenizer.encode("é😀", allow_special=False)[:-1]
    assert tokenizer.decode(half) == "é\ufffd"


def test_control_tokens_in_text(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    text = "<|im_start|>user\nHello<|im_end|>"
    as_control = tokenizer.encode(text, allow_special=True)
    as_text = tokenizer.encode(text, allow_special=False)
    assert as_control[0] == 1
    assert as_control[-1] == 2
    assert not {0, 1, 2} & {*as_text}
    assert tokenizer.decode(as_text) == text
    assert tokenizer.decode(as_control) == "user\nHello"
    assert tokenizer.decode(as_control, skip_special=False) == text
    assert tokenizer.special_texts == tuple(sorted(SPECIAL_TOKENS, key=lambda item: (-len(item), item)))
    assert [tokenizer.is_special(token) for token in (0, 1, 2, 3)] == [True, True, True, False]
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_text(1) == "<|im_start|>"


def test_facts(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (len(tiny_vocabulary().tokens), 0, 2)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert tokenizer.end_ids == {0, 2}
    assert (tokenizer.add_bos, tokenizer.strips_space) == (False, False)
    assert tiny(tmp_path, ggml__add_bos_token=True).add_bos
    assert not tiny(tmp_path, ggml__add_bos_token=True, ggml__bos_token_id=None).add_bos
    assert tiny(tmp_path, ggml__pre="llama-bpe", ggml__add_bos_token=None).add_bos
    assert tiny(tmp_path, ggml__eot_token_id=9).end_ids == {0, 2, 9}
    for token in (-1, tokenizer.vocab_size):
        for method in (tokenizer.token_bytes, tokenizer.token_text, tokenizer.is_special):
            with pytest.raises(IndexError, match=f"token {token} is out of"):
                method(token)


def test_kinds_of_tokens(tmp_path: Path) -> None:
    vocabulary = tiny_vocabulary()
    texts = [*vocabulary.tokens[:-3], "<tool é>", "[PAD1]", "<unk>"]
    kinds = [3] * 3 + [1] * (len(texts) - 6) + [4, 5, 2]
    merges = [f"{a} {b}" for a, b in vocabulary.merges if {a + b} <= {*texts}]
    tokenizer = tiny(tmp_path, ggml__tokens=texts, ggml__token_type=kinds, ggml__merges=merges)
    user, unused, unknown = range(len(texts) - 3, len(texts))
    for allow in (True, False):
        assert tokenizer.encode("a<tool é>[PAD1]", allow_special=allow)[1] == user
        assert unused not in tokenizer.encode("a<tool é>[PAD1]", allow_special=allow)
    assert tokenizer.token_bytes(user) == "<tool é>".encode()
    assert (tokenizer.is_special(user), tokenizer.is_special(unused), tokenizer.is_special(unknown)) == (
        False,
        True,
        True,
    )
    assert tokenizer.token_bytes(unused) == b""
    assert "[PAD1]" not in tokenizer.special_texts
    assert tokenizer.encode("<unk>", allow_special=True) == [unknown]


def test_padding_rows_have_silent_tokens(tmp_path: Path) -> None:
    vocabulary = tiny_vocabulary()
    count = len(vocabulary.tokens)
    file = GGUFFile(tiny_gguf(tmp_path))
    tokenizer = build_gguf_tokenizer(file, count + 10)
    assert tokenizer.vocab_size == count + 10
    assert (tokenizer.token_bytes(count + 5), tokenizer.token_text(count + 5)) == (b"", "")
    assert tokenizer.is_special(count + 9)
    with pytest.raises(StartupError, match=f"has {count} tokens, but the embedding table {count - 1} rows"):
        build_gguf_tokenizer(file, count - 1)


def test_half_a_surrogate_pair_is_the_callers_fault(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    for allow in (True, False):
        with pytest.raises(InvalidRequest, match=r"U\+D83D\) at character 3"):
            tokenizer.encode("abc\ud83d", allow_special=allow)


TOKENS = list(tiny_vocabulary().tokens)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "model": ({"ggml__model": "bert"}, "model_unsupported", "tokenizer.ggml.model is 'bert'"),
    "no model": ({"ggml__model": None}, "model_unsupported", "tokenizer.ggml.model is None"),
    "pre": ({"ggml__pre": "wobble"}, "model_unsupported", "tokenizer.ggml.pre is 'wobble'"),
    "no pre": ({"ggml__pre": None}, "model_unsupported", "tokenizer.ggml.pre is missing"),
    "no tokens": ({"ggml__tokens": None}, "model_invalid", "tokenizer.ggml.tokens is missing"),
    "token twice": ({"ggml__tokens": [*TOKENS[:-1], TOKENS[5]]}, "model_invalid", "comes twice"),
    "tokens of numbers": ({"ggml__tokens": [1, 2, 3]}, "model_invalid", "not an array of strings"),
    "no merges": ({"ggml__merges": None}, "model_invalid", "tokenizer.ggml.merges is missing"),
    "one-part merge": ({"ggml__merges": ["ab"]}, "model_invalid", "has 'ab'"),
    "strange merge": ({"ggml__merges": ["zz qq"]}, "model_invalid", "do not fit the tokens"),
    "few kinds": ({"ggml__token_type": [1, 1]}, "model_invalid", "token_type does not give 364"),
    "no byte": (
        {"ggml__token_type": [6] * 364},
        "model_invalid",
        "token 0 '<|endoftext|>' is said to be a byte",
    ),
    "eos": ({"ggml__eos_token_id": 5000}, "model_invalid", "eos_token_id is 5000, out of the 364 tokens"),
    "bos": ({"ggml__bos_token_id": "x"}, "model_invalid", "bos_token_id is not a number"),
    "spm without scores": (
        {"ggml__model": "llama", "ggml__merges": None},
        "model_invalid",
        "tokenizer.ggml.scores is missing",
    ),
    "spm charsmap": (
        {"ggml__model": "llama", "ggml__unknown_token_id": 0, "ggml__precompiled_charsmap": [1, 2]},
        "model_invalid",
        "its table of characters is broken",
    ),
    "spm charsmap of numbers": (
        {"ggml__model": "llama", "ggml__unknown_token_id": 0, "ggml__precompiled_charsmap": [1, 300]},
        "model_invalid",
        "precompiled_charsmap is not made of bytes",
    ),
    "spm without unknown": (
        {"ggml__model": "llama", "ggml__merges": None, "ggml__scores": [0.0] * 364},
        "model_invalid",
        "neither byte tokens",
    ),
    "spm few bytes": (
        {
            "ggml__model": "llama",
            "ggml__tokens": ["<0x00>", *TOKENS[1:]],
            "ggml__token_type": [6] + [1] * 363,
        },
        "model_invalid",
        "has 1 byte tokens, not 256",
    ),
    "unigram without scores": ({"ggml__model": "t5"}, "model_invalid", "tokenizer.ggml.scores is missing"),
    "unigram without unknown": (
        {"ggml__model": "t5", "ggml__scores": [0.0] * 364},
        "model_invalid",
        "nor an unknown token",
    ),
    "gemma without merges": (
        {"ggml__model": "gemma4", "ggml__merges": None},
        "model_invalid",
        "tokenizer.ggml.merges is missing",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_vocabulary_that_cannot_be_built(tmp_path: Path, name: str) -> None:
    metadata, code, words = REFUSED[name]
    with pytest.raises(StartupError) as caught:
        tiny(tmp_path, **metadata)
    assert caught.value.code == code
    assert words in caught.value.message


def test_many_threads_at_once(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>" * 20
    wanted = {allow: tokenizer.encode(text, allow_special=allow) for allow in (True, False)}
    wrong: list[object] = []

    def work(allow: bool) -> None:
        wrong.extend(1 for _ in range(60) if tokenizer.encode(text, allow_special=allow) != wanted[allow])

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_settings_of_a_directory(tmp_path: Path) -> None:
    tiny_hf_tokenizer(tmp_path)
    tokenizer = hf(
        tmp_path, {"bos_token": {"content": "<|im_start|>"}, "eos_token": None}, ends=(2, 9999, 0), size=370
    )
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, 370)
    assert tokenizer.end_ids == {0, 2}
    assert tokenizer.token_bytes(369) == b""
    nothing = hf(tmp_path, {})
    assert (nothing.bos_id, nothing.eos_id, nothing.bos_token, nothing.add_bos) == (None, None, "", False)
    with pytest.raises(StartupError, match="bos_token is 5"):
        hf(tmp_path, {"bos_token": 5})
    with pytest.raises(StartupError, match=r"token 363 '.*' lies beyond the 363 rows"):
        hf(tmp_path, {}, size=363)


def test_what_a_tokenizer_json_says_besides(tmp_path: Path) -> None:
    tiny_hf_tokenizer(tmp_path)
    base = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    base.enable_truncation(4)
    base.enable_padding(length=16)
    base.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    base.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    base.save(str(tmp_path / "tokenizer.json"))
    tokenizer = hf(tmp_path, {"bos_token": "<|endoftext|>"})
    assert tokenizer.add_bos
    ids = tokenizer.encode("a b c d e f g", allow_special=True)
    assert (tokenizer.decode(ids), ids[0]) == ("a b c d e f g", base.token_to_id("a"))
    think = base.token_to_id("<think>")
    assert tokenizer.encode("<think>", allow_special=False) == [think]
    assert tokenizer.token_bytes(think) == b"<think>"
    assert not tokenizer.is_special(think)
    assert not hf(tmp_path, {"bos_token": "<|endoftext|>", "add_bos_token": False}).add_bos


def test_added_tokens_with_gaps_between_their_ids(tmp_path: Path) -> None:
    tiny_hf_tokenizer(tmp_path)
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    for token_id, text in ((390, "<later>"), (380, "<sooner>")):
        contents["model"]["vocab"][text] = token_id
        contents["added_tokens"].append({
            "id": token_id, "content": text, "special": token_id == 390, "normalized": False, "single_word": False,
            "lstrip": False, "rstrip": False,
        })  # fmt: skip
    contents["added_tokens"].sort(key=lambda token: token["id"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    tokenizer = hf(tmp_path, {})
    assert tokenizer.encode("<later><sooner>", allow_special=True) == [390, 380]
    assert tokenizer.encode("<sooner>", allow_special=False) == [380]
    assert 390 not in tokenizer.encode("<later>", allow_special=False)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("{", "is not a tokenizer"),
        ("[]", "is not a tokenizer"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "has no decoder"),
        (
            '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": {"type": "WordPiece", "prefix": "#", "cleanup": true}}',
            "has a decoder of kind WordPiece",
        ),
    ],
)
def test_a_tokenizer_json_that_cannot_be_used(tmp_path: Path, contents: str, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(contents)
    with pytest.raises(StartupError, match=words):
        hf(tmp_path, {})


@pytest.mark.real_model
def test_smollm2(smollm2_path: Path) -> None:
    """The real vocabulary against an independent build of it, and figures of the file that are known."""
    from tokenizers import AddedToken, models, pre_tokenizers

    model = open_model(smollm2_path)
    assert (model.config.layers, model.config.hidden_size, model.config.context_tokens) == (30, 576, 8192)
    assert len(model.tensor_names()) == 272
    tokenizer = load_tokenizer(model)
    file = GGUFFile(smollm2_path)
    listed = {key: file.array(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges")}
    assert all(listed.values())
    texts, merges = listed["tokens"].strings(), listed["merges"].strings()
    kinds = listed["token_type"].numbers().tolist()
    reference = tokenizers.Tokenizer(
        models.BPE(
            {text: index for index, text in enumerate(texts)}, [tuple(merge.split(" ")) for merge in merges]
        )
    )
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    reference.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(texts, kinds, strict=True)
            if kind == 3
        ]
    )
    for text in TEXTS:
        assert (
            tokenizer.encode(text, allow_special=True) == reference.encode(text, add_special_tokens=False).ids
        )
        assert tokenizer.decode(tokenizer.encode(text, allow_special=False)) == text
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(prompt, allow_special=True) == [
        1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
    ]  # fmt: skip
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.end_ids) == (1, 2, False, {0, 2})
