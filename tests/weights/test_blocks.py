"""Block formats against the ``gguf`` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.weights import ENCODINGS, RawTensor, dequantise
from support.weights_blocks import BLOCK_BYTES, BLOCK_VALUES, random_rows


def reference(data: np.ndarray, encoding: str) -> np.ndarray:
    return dequantize(data, gguf.GGMLQuantizationType[encoding])


def test_every_encoding_has_the_sizes_of_the_format() -> None:
    for name, encoding in ENCODINGS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (
            encoding.block_values,
            encoding.block_bytes,
        )
    assert set(ENCODINGS) == set(BLOCK_VALUES)


@pytest.mark.parametrize("encoding", list(ENCODINGS))
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_equals_the_gguf_package(encoding: str, rows: int) -> None:
    columns = 512
    data = random_rows(np.random.default_rng(rows), encoding, rows, columns)
    found = dequantise(RawTensor("w", encoding, (rows, columns), data))
    assert found.dtype == np.float32
    assert found.shape == (rows, columns)
    assert np.array_equal(found.view(np.uint32), reference(data, encoding).view(np.uint32))


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ("F32", "F16", "BF16")])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_equals_the_gguf_package_on_any_bits(encoding: str, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, 3))
    size = blocks * BLOCK_BYTES[encoding]
    row = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)[None]
    with np.errstate(all="ignore"):
        found = dequantise(RawTensor("w", encoding, (1, blocks * BLOCK_VALUES[encoding]), row))
        wanted = reference(row, encoding)
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_a_slice_of_rows_is_the_same_rows(encoding: str) -> None:
    data = random_rows(np.random.default_rng(7), encoding, 40, 256)
    raw = RawTensor("w", encoding, (40, 256), data)
    assert np.array_equal(dequantise(raw, rows=slice(11, 29)), dequantise(raw)[11:29])
    assert dequantise(raw, rows=slice(5, 5)).shape == (0, 256)


def test_data_at_an_odd_address_and_read_only() -> None:
    data = random_rows(np.random.default_rng(1), "F32", 4, 32)
    shifted = np.empty(data.nbytes + 1, dtype=np.uint8)
    shifted[1:] = data.reshape(-1)
    view = shifted[1:].reshape(4, -1)
    view.flags.writeable = False
    found = dequantise(RawTensor("w", "F32", (4, 32), view))
    assert np.array_equal(found, data.view(np.float32))
    assert not np.shares_memory(found, shifted)
    found[0, 0] = 1.0


def test_a_vector_keeps_its_shape() -> None:
    values = np.arange(10, dtype=np.float32)
    raw = RawTensor("norm", "F32", (10,), values.view(np.uint8)[None])
    assert np.array_equal(dequantise(raw), values)
    assert raw.nbytes == 40


def test_row_bytes_refuses_part_of_a_block() -> None:
    assert ENCODINGS["Q4_K"].row_bytes(512) == 288
    with pytest.raises(ValueError, match="300 values a row are not whole Q4_K blocks of 256"):
        ENCODINGS["Q4_K"].row_bytes(300)
