"""Directories of any architecture, packed for MLX or not: what is read, what is refused, and who is told to compute them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.errors import StartupError
from stretto.weights import Checkpoint, load_tokenizer, open_files, open_model
from support.weights_packed import QUANTIZATION, VOCAB, packed_directory


def test_what_a_packed_checkpoint_says_of_itself(tmp_path: Path) -> None:
    path = packed_directory(tmp_path / "packed", quantization=QUANTIZATION, vocab_size=VOCAB)
    checkpoint = Checkpoint(path)
    assert checkpoint.quantization == QUANTIZATION
    assert checkpoint.made_by_mlx
    assert (checkpoint.vocab_size, checkpoint.name) == (VOCAB, "packed")
    assert checkpoint.weight_bytes == VOCAB * 8 * 4 + VOCAB * 2 + 4
    assert (
        checkpoint.shard_of["model.embed_tokens.weight"].tensors["model.embed_tokens.weight"].encoding
        == "U32"
    )
    tokenizer = load_tokenizer(checkpoint)
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (VOCAB, 2)
    assert "<|im_start|>" in (checkpoint.chat_template or "")
    same = Checkpoint(packed_directory(tmp_path / "same", quantization=QUANTIZATION, vocab_size=VOCAB))
    other = Checkpoint(
        packed_directory(tmp_path / "other", quantization=QUANTIZATION, vocab_size=VOCAB, scalar=False)
    )
    assert checkpoint.fingerprint == same.fingerprint != other.fingerprint
    for opened in (checkpoint, same, other):
        opened.close()
        opened.close()


@pytest.mark.parametrize(("made_by", "mlx"), [("pt", False), ("mlx", True)])
def test_plain_weights_that_mlx_wrote_are_known_by_their_header(
    tmp_path: Path, made_by: str, mlx: bool
) -> None:
    checkpoint = Checkpoint(packed_directory(tmp_path / "plain", made_by=made_by))
    assert checkpoint.quantization is None
    assert checkpoint.made_by_mlx is mlx
    checkpoint.close()


def test_the_vocabulary_of_a_model_that_also_sees_and_of_one_that_does_not_say(tmp_path: Path) -> None:
    seeing = Checkpoint(
        packed_directory(tmp_path / "seeing", text_config={"vocab_size": VOCAB + 5}, vocab_size=7)
    )
    silent = Checkpoint(packed_directory(tmp_path / "silent"))
    assert (seeing.vocab_size, silent.vocab_size) == (VOCAB + 5, VOCAB)
    seeing.close()
    silent.close()


def test_a_packed_checkpoint_is_opened_as_such_and_else_refused_with_who_computes_it(tmp_path: Path) -> None:
    path = packed_directory(tmp_path / "packed", quantization=QUANTIZATION)
    opened = open_files(path)
    assert isinstance(opened, Checkpoint)
    opened.close()
    with pytest.raises(StartupError, match=r"packed for MLX.*--backend mlx computes it") as caught:
        open_model(path)
    assert caught.value.code == "model_unsupported"
    with pytest.raises(StartupError, match="architectures is"):
        open_files(packed_directory(tmp_path / "unknown"))


def test_what_is_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="quantization is not an object"):
        Checkpoint(packed_directory(tmp_path / "words", quantization="4 bits"))
    path = packed_directory(tmp_path / "short", quantization=QUANTIZATION)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(StartupError, match="truncated") as caught:
        Checkpoint(path)
    assert caught.value.code == "model_invalid"
