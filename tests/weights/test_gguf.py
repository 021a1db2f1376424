"""The GGUF container: what it reads equals what the ``gguf`` package reads, and broken files are refused cheaply."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from stretto.errors import StartupError
from stretto.weights import dequantise, load_tokenizer, open_model
from stretto.weights.gguf import GGUFArray, GGUFFile
from support.weights_tiny import tiny_gguf

U32, U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return U64(len(data)) + data


def container(
    *entries: bytes,
    tensors: bytes = b"",
    count: int = 0,
    version: int = 3,
    data: bytes = b"",
    keys: int | None = None,
) -> bytes:
    """A GGUF file from parts: metadata entries, tensor table, data section at the default alignment."""
    header = b"GGUF" + U32(version) + U64(count) + U64(len(entries) if keys is None else keys)
    header += b"".join(entries) + tensors
    return header + b"\0" * (-len(header) % 32) + data


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + U32(len(shape)) + b"".join(map(U64, shape)) + U32(kind) + U64(offset)


def refused(path: Path, data: bytes, opener: Callable[[Path], object] = GGUFFile) -> StartupError:
    path.write_bytes(data)
    with pytest.raises(StartupError) as caught:
        opener(path)
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_reads_what_the_gguf_package_reads(tmp_path: Path, version: int) -> None:
    path = tiny_gguf(tmp_path, quant="Q5_1", tied=False)
    data = bytearray(path.read_bytes())
    data[4:8] = U32(version)
    path.write_bytes(data)
    found, wanted = GGUFFile(path), gguf.GGUFReader(path)
    assert found.version == version
    assert [*found.metadata] == [key for key in wanted.fields if not key.startswith("GGUF.")]
    for key, value in found.metadata.items():
        contents = wanted.fields[key].contents()
        if isinstance(value, GGUFArray):
            value = value.strings() if isinstance(contents[0], str) else value.numbers().tolist()
        assert value == contents
    assert [*found.tensors] == [item.name for item in wanted.tensors]
    for item in wanted.tensors:
        mine = found.tensors[item.name]
        assert mine.encoding == item.tensor_type.name
        assert mine.shape == tuple(reversed(item.shape.tolist()))
        assert (mine.start, mine.nbytes) == (item.data_offset, item.n_bytes)


def test_every_kind_of_value(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "kinds.gguf", "llama")
    for name, value in {
        "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 1 << 31, "int32": -(1 << 31),
        "uint64": 1 << 63, "int64": -(1 << 62), "float32": 0.5, "float64": 0.1, "bool": True,
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(f"k.{name}", value)
    writer.add_array("k.bools", [True, False])
    writer.add_array("k.floats", [1.5, -2.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "kinds.gguf")
    assert file.whole("k.uint64") == 1 << 63
    assert file.whole("k.int64") == -(1 << 62)
    assert file.number("k.float64") == 0.1
    assert file.flag("k.bool") is True
    bools, floats = file.array("k.bools"), file.array("k.floats")
    assert bools is not None
    assert floats is not None
    assert bools.numbers().tolist() == [True, False]
    assert floats.numbers().tolist() == [1.5, -2.0]
    for wrong in (file.whole, file.text, file.array):
        with pytest.raises(StartupError, match=r"k\.bool is"):
            wrong("k.bool")
    with pytest.raises(StartupError, match="not an array of strings"):
        bools.strings()
    with pytest.raises(StartupError, match="differs from layer to layer"):
        file.number("k.floats")


HUGE = (1 << 64) - 1
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "model_invalid", "is empty"),
    "no magic": (b"PK\x03\x04" + b"\0" * 60, "model_invalid", "is not a GGUF file"),
    "only magic": (b"GGUF", "model_invalid", "the version of 4 bytes runs past the end"),
    "version 1": (container(version=1), "model_unsupported", "GGUF version 1"),
    "version 9": (container(version=9), "model_unsupported", "GGUF version 9"),
    "big-endian": (b"GGUF" + b"\0\0\0\3" + b"\0" * 16, "model_unsupported", "big-endian"),
    "many tensors": (container(count=HUGE), "model_invalid", "announces 18446744073709551615 tensors"),
    "many entries": (container(keys=HUGE), "model_invalid", "announces 18446744073709551615 metadata"),
    "entries that are not there": (container(keys=60_000), "model_invalid", "runs past the end"),
    "long key": (container(U64(HUGE)), "model_invalid", "a metadata key of 18446744073709551615 bytes"),
    "long string": (
        container(text("a") + U32(8) + U64(HUGE)),
        "model_invalid",
        "at most 16777216 are allowed",
    ),
    "string past the end": (
        container(text("a") + U32(8) + U64(999)),
        "model_invalid",
        "a of 999 bytes runs past",
    ),
    "key not UTF-8": (
        container(text(b"\xff\xfe") + U32(0) + b"\1"),
        "model_invalid",
        "is not UTF-8 at offset 32",
    ),
    "unknown type": (container(text("a") + U32(77) + b"\0" * 8), "model_invalid", "unknown type 77"),
    "unknown element": (container(text("a") + U32(9) + U32(13) + U64(1)), "model_invalid", "element type 13"),
    "nested arrays": (
        container(text("a") + U32(9) + U32(9) + U64(1)),
        "model_unsupported",
        "array of arrays",
    ),
    "long array": (container(text("a") + U32(9) + U32(0) + U64(HUGE)), "model_invalid", "runs past the end"),
    "wide array": (
        container(text("a") + U32(9) + U32(12) + U64(1 << 61)),
        "model_invalid",
        "runs past the end",
    ),
    "many strings": (
        container(text("a") + U32(9) + U32(8) + U64(HUGE)),
        "model_invalid",
        "more than the file has",
    ),
    "array of a long string": (
        container(text("a") + U32(9) + U32(8) + U64(1) + U64(1 << 60)),
        "model_invalid",
        "runs past the end",
    ),
    "strings that jump out": (
        container(text("a") + U32(9) + U32(8) + U64(2) + U64(1 << 60) + b"\0" * 32),
        "model_invalid",
        "ends within the length of string 1",
    ),
    "key twice": (
        container(*[text("a") + U32(0) + b"\1"] * 2),
        "model_invalid",
        "the metadata key a comes twice",
    ),
    "bad alignment": (
        container(text("general.alignment") + U32(4) + U32(24)),
        "model_invalid",
        "general.alignment is 24",
    ),
    "huge alignment": (
        container(
            text("general.alignment") + U32(4) + U32(1 << 31),
            tensors=tensor("w", [8]),
            count=1,
            data=b"\0" * 32,
        ),
        "model_invalid",
        "tensor w takes bytes",
    ),
    "no dimensions": (
        container(tensors=tensor("w", []), count=1),
        "model_invalid",
        "tensor w has 0 dimensions",
    ),
    "many dimensions": (
        container(tensors=tensor("w", [1] * 5), count=1),
        "model_invalid",
        "has 5 dimensions",
    ),
    "endless dimensions": (
        container(tensors=text("w") + U32(0xFFFFFFFF), count=1),
        "model_invalid",
        "has 4294967295 dimensions",
    ),
    "empty dimension": (container(tensors=tensor("w", [4, 0]), count=1), "model_invalid", "empty dimension"),
    "unknown encoding": (
        container(tensors=tensor("w", [32], kind=99), count=1),
        "model_unsupported",
        "tensor w has the type number 99",
    ),
    "IQ encoding": (container(tensors=tensor("w", [256], kind=16), count=1), "model_unsupported", "IQ2_XXS"),
    "part of a block": (
        container(tensors=tensor("w", [33], kind=8), count=1, data=b"\0" * 68),
        "model_invalid",
        "33 values a row are not whole Q8_0 blocks",
    ),
    "overflowing product": (
        container(tensors=tensor("w", [1 << 32, 1 << 32, 1 << 32, 1 << 32]), count=1, data=b"\0" * 64),
        "model_invalid",
        "the file ends at",
    ),
    "beyond the file": (
        container(tensors=tensor("w", [8], offset=32), count=1, data=b"\0" * 32),
        "model_invalid",
        "truncated or its header is wrong",
    ),
    "offset that wraps": (
        container(tensors=tensor("w", [8], offset=(1 << 64) - 32), count=1, data=b"\0" * 32),
        "model_invalid",
        "the file ends at",
    ),
    "misaligned": (
        container(tensors=tensor("w", [4], offset=16), count=1, data=b"\0" * 64),
        "model_invalid",
        "lies at data offset 16, not a multiple of 32",
    ),
    "same name twice": (
        container(tensors=tensor("w", [8]) + tensor("w", [8], offset=32), count=2, data=b"\0" * 64),
        "model_invalid",
        "tensor w comes twice",
    ),
    "overlap": (
        container(tensors=tensor("v", [16]) + tensor("w", [8], offset=32), count=2, data=b"\0" * 64),
        "model_invalid",
        "tensors v and w overlap",
    ),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_header_is_refused_without_spending_memory(tmp_path: Path, name: str) -> None:
    data, code, words = HOSTILE[name]
    tracemalloc.start()
    try:
        error = refused(tmp_path / "hostile.gguf", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.code == code
    assert words in error.message
    assert peak < 1 << 20


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be opened: No such file") as caught:
        open_model(tmp_path / "missing.gguf")
    assert caught.value.code == "model_not_found"
    with pytest.raises(StartupError, match="is not a regular file"):
        open_model(Path("/dev/null"))


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = tiny_gguf(tmp_path / "whole.gguf", quant="Q4_0").read_bytes()
    header = GGUFFile(tmp_path / "whole.gguf").data_start
    rng = random.Random(5)
    ends = {
        *rng.sample(range(header), 250),
        *rng.sample(range(header, len(whole)), 20),
        header,
        len(whole) - 1,
    }
    path = tmp_path / "cut.gguf"
    for end in sorted(ends):
        assert refused(path, whole[:end], open_model).code in ("model_invalid", "model_unsupported")


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    """Bytes of the header changed at random: the file opens and reads in full, or is refused with a StartupError."""
    whole = tiny_gguf(tmp_path / "whole.gguf", quant="Q4_0").read_bytes()
    header = GGUFFile(tmp_path / "whole.gguf").data_start
    rng = random.Random(11)
    path, refusals, codes = tmp_path / "damaged.gguf", 0, set[str]()
    tracemalloc.start()
    try:
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(rng.choice((1, 1, 2, 8))):
                # The sizes and tensor table, where damage matters most, half of the time.
                place = (
                    rng.randrange(header)
                    if rng.random() < 0.5
                    else rng.choice((*range(4, 24), header - 2000))
                )
                width = rng.choice((1, 4, 8))
                place = min(place, header - width)
                data[place : place + width] = rng.choice(
                    (
                        rng.randbytes(width),
                        b"\xff" * width,
                        b"\0" * width,
                        bytes([rng.randrange(256)]) * width,
                    )
                )
            path.write_bytes(data)
            try:
                model = open_model(path)
                tokenizer = load_tokenizer(model)
                tokenizer.encode("Hello world", allow_special=True)
                with np.errstate(all="ignore"):
                    for name in model.tensor_names():
                        dequantise(model.raw(name))
                model.close()
            except StartupError as error:
                codes.add(error.code)
                refusals += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 50 < refusals < 300
    assert codes == {"model_invalid", "model_unsupported"}
    assert peak < 32 << 20


def test_views_outlive_the_model(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path))
    raw = model.raw("model.layers.0.self_attn.v_proj.weight")
    before = raw.data.copy()
    model.close()
    model.close()
    assert np.array_equal(raw.data, before)
    with pytest.raises(ValueError, match="is closed"):
        model.raw("model.norm.weight")
