"""Every kernel against float32 truth, on every instruction set that this machine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stretto.backends.native.kv_format import KV_FORMAT_NUMBERS
from stretto.backends.native.library import ENCODING_NUMBERS, Library, address
from stretto.weights.blocks import RawTensor, dequantise
from support.native_kernels import (
    FloatArray,
    PagedCache,
    attend,
    attend_reference,
    eight_bits,
    make_cache,
    make_matrix,
    multiply,
    quantised_activations,
    spread,
)
from support.weights_blocks import BLOCK_VALUES, random_rows

pytestmark = pytest.mark.torch

LIBRARY = Library()
INSTRUCTION_SETS = LIBRARY.kernels
PLAIN = ("F32", "F16", "BF16")


def test_the_best_kernels_come_first_and_the_reference_last() -> None:
    assert INSTRUCTION_SETS[-1] == "scalar"
    assert len(set(INSTRUCTION_SETS)) == len(INSTRUCTION_SETS)


@pytest.mark.parametrize("encoding", ENCODING_NUMBERS)
def test_a_row_dequantises_exactly(encoding: str) -> None:
    data = random_rows(np.random.default_rng(1), encoding, 3, 512)
    out = np.empty((3, 512), dtype=np.float32)
    for row in range(3):
        LIBRARY.call.stretto_dequantise(
            ENCODING_NUMBERS[encoding], address(data[row]), 512, address(out[row])
        )
    expected = dequantise(RawTensor("w", encoding, (3, 512), data))
    # The K encodings multiply their two scales before or after; nothing else may differ.
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-7 if encoding.endswith("K") else 0)


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
@pytest.mark.parametrize("encoding", ENCODING_NUMBERS)
@pytest.mark.parametrize("fine", [False, True], ids=["8bit", "fine"])
def test_products_equal_torch(kernels: str, encoding: str, fine: bool) -> None:
    """With the activations that the kernel stands for, only the order of float32 sums is left to differ."""
    block = BLOCK_VALUES[encoding]
    shapes = [(max(block, 32), 1), (3 * max(block, 32), 37), (256, 48), (11 * max(block, 32), 33)]
    for number, (columns, width) in enumerate(shapes):
        columns = columns if encoding not in PLAIN else columns + 1
        packed = make_matrix(LIBRARY, encoding, width, columns, seed=number)
        rng = np.random.default_rng(number)
        bias = rng.normal(size=width).astype(np.float32) if number else None
        for rows in (1, 2, 7, 17, 141):
            x = (rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
            seen = x if encoding in PLAIN else quantised_activations(x, fine=fine)
            expected = torch.from_numpy(seen).double() @ torch.from_numpy(packed.dense).double().T
            if bias is not None:
                expected += torch.from_numpy(bias)
            out = multiply(LIBRARY, kernels, packed, x, bias, fine=fine)
            scale = np.abs(seen).max() * np.abs(packed.dense).max() * columns**0.5
            np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=float(scale) * 2e-6)


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
def test_extreme_values_do_not_overflow(kernels: str) -> None:
    """All weights and activations at the ends of their range: sums in 16 bits would not hold."""
    for encoding in ("Q8_0", "Q6_K", "Q4_0", "Q5_1"):
        packed = make_matrix(LIBRARY, encoding, 16, 256)
        for sign in (-1.0, 1.0):
            x = np.full((4, 256), sign * 3.0, dtype=np.float32)
            expected = quantised_activations(x).astype(np.float64) @ packed.dense.astype(np.float64).T
            np.testing.assert_allclose(multiply(LIBRARY, kernels, packed, x), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
def test_a_second_plane_leaves_a_hundredth_of_the_rounding(kernels: str) -> None:
    packed = make_matrix(LIBRARY, "Q4_1", 48, 512)
    x = np.random.default_rng(0).normal(size=(5, 512)).astype(np.float32)
    exact = x.astype(np.float64) @ packed.dense.astype(np.float64).T
    rough, close = (
        np.abs(multiply(LIBRARY, kernels, packed, x, fine=fine) - exact).max() for fine in (False, True)
    )
    assert close < rough / 100


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
@pytest.mark.parametrize("fine", [False, True], ids=["8bit", "fine"])
def test_activations_are_quantised_by_the_definition(kernels: str, fine: bool) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(6, 96)) * np.array([[1e-32], [1e-20], [1.0], [0.0], [1e4], [1e20]])).astype(
        np.float32
    )
    values, rest = np.empty(x.shape, dtype=np.int8), np.zeros(x.shape, dtype=np.int8)
    scales, sums = (np.empty((6, 3), dtype=np.float32) for _ in range(2))
    halves = np.empty((6, 6), dtype=np.float32)
    kind = LIBRARY.call.stretto_quantise(
        kernels.encode(), address(x), x.size, address(values), address(rest) if fine else None,
        address(scales), address(sums), address(halves),
    )  # fmt: skip
    expected = quantised_activations(x, fine=fine)
    expected[0] = 0  # beside anything else these are zeros; their scale has no inverse in float32
    if kind == 2:  # words: of four columns the first and the third, then the second and the fourth
        pairs = (part.view(np.int16).reshape(6, -1, 2) for part in (values, rest))
        whole = np.stack(list(pairs), axis=-1).reshape(x.shape).astype(np.float32)
    else:
        whole = values + rest / np.float32(254)
    seen = whole.reshape(6, 3, 32) * scales[:, :, None]
    np.testing.assert_allclose(seen.reshape(x.shape)[1:], expected[1:], rtol=1e-5, atol=0)
    assert not values[0].any()
    for row in range(6):
        size = float(np.abs(seen[row]).max()) * 1e-4
        np.testing.assert_allclose(sums[row], seen[row].sum(-1), rtol=1e-5, atol=size)
        np.testing.assert_allclose(halves[row].reshape(3, 2).sum(-1), sums[row], rtol=1e-5, atol=size)


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
def test_norm_and_gate_equal_torch(kernels: str) -> None:
    rng = np.random.default_rng(0)
    for columns in (16, 64, 576):
        x, weight = (rng.normal(size=columns).astype(np.float32) for _ in range(2))
        out = np.empty_like(x)
        LIBRARY.call.stretto_norm(kernels.encode(), address(x), address(weight), columns, 1e-5, address(out))
        expected = torch.nn.functional.rms_norm(
            torch.from_numpy(x), (columns,), torch.from_numpy(weight), 1e-5
        )
        np.testing.assert_allclose(out, expected.numpy(), rtol=2e-6)
    gates = np.concatenate([np.linspace(-120, 120, 1008), [0, -0.0, 1e-30, -1e-30, 1e4, -1e4, 88.5, -88.5]])
    gates, up = gates.astype(np.float32), rng.normal(size=1016).astype(np.float32)
    gates, up = np.resize(gates, 1024), np.resize(up, 1024)
    out = np.empty_like(gates)
    LIBRARY.call.stretto_gate(kernels.encode(), address(gates), address(up), 1024, address(out))
    expected = torch.nn.functional.silu(torch.from_numpy(gates).double()) * torch.from_numpy(up).double()
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
@pytest.mark.parametrize("kv_dtype", KV_FORMAT_NUMBERS)
@pytest.mark.parametrize("block_tokens", [4, 16, 24, 32])
def test_attention_reads_scattered_blocks(kernels: str, kv_dtype: str, block_tokens: int) -> None:
    """The cache is full of NaN wherever this sequence has not written: reading it would show."""
    for head_size, kv_heads, per_position, start, rows in [
        (16, 1, 1, 0, 1), (64, 2, 3, 99, 1), (64, 1, 4, 61, 8), (32, 3, 7, 5, 4), (128, 1, 16, 200, 2), (64, 1, 32, 47, 1),
        (80, 2, 5, 38, 3), (48, 1, 3, 17, 10),
    ]:  # fmt: skip
        cache = make_cache(start + rows, kv_heads, head_size, block_tokens, kv_dtype, seed=start)
        queries = (
            np.random.default_rng(rows).normal(size=(rows, per_position, head_size)).astype(np.float32) * 3
        )
        for kv_head in range(kv_heads):
            out = attend(LIBRARY, kernels, cache, queries, start, kv_head)
            if (kernels, kv_dtype) == ("avx512-bf16", "bfloat16"):
                seen, off = attend_in_pairs(cache, queries, start, kv_head)
                assert bool((np.abs(out - seen) <= off).all())
                continue
            expected = attend_reference(cache, queries, start, kv_head)
            # The queries are spread in float32, and scores of the large dimension round like its size.
            loose = 5 if kv_dtype == "int8" else 1
            np.testing.assert_allclose(out, expected, rtol=loose * 2e-5, atol=loose * 2e-6)


def attend_in_pairs(
    cache: PagedCache, queries: FloatArray, start: int, kv_head: int
) -> tuple[FloatArray, FloatArray]:
    """The reference for scaled queries rounded to bfloat16, and how far rounded weights may be from it: half of their last bit
    each, so as much of the mean of the values' sizes; and the rounding of float32 sums."""
    factor = np.float32(1) / np.sqrt(np.float32(queries.shape[-1]))
    rounded = torch.from_numpy(queries * factor).bfloat16().float().numpy() / factor
    sizes = attend_reference(replace(cache, values=np.abs(cache.values)), rounded, start, kv_head)
    return attend_reference(cache, rounded, start, kv_head), sizes * 2.0**-8 + 1e-5


def packed_head(kernels: str, x: np.ndarray, *, spread_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and the bits of bfloat16 scales, row by row; the memory for them starts dirty."""
    values = np.full(x.shape, 99, dtype=np.int8)
    scales = np.full((len(x), -(-x.shape[1] // 32)), 0xAAAA, dtype=np.uint16)
    for row, one in enumerate(x):
        assert LIBRARY.call.stretto_pack_head(
            kernels.encode(),
            address(one),
            len(one),
            int(spread_out),
            address(values[row]),
            address(scales[row]),
        )
    return values, scales


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
@pytest.mark.parametrize("head_size", [16, 32, 48, 64, 80, 112, 128, 256, 512])
def test_heads_are_packed_by_the_definition(kernels: str, head_size: int) -> None:
    rng = np.random.default_rng(head_size)
    sizes = np.array([[1.0], [1e-25], [1e20], [3e4]])
    x = (rng.normal(size=(4, head_size)) * sizes).astype(np.float32)
    values, scales = packed_head(kernels, x, spread_out=False)
    expected, expected_scales, seen = eight_bits(x)
    np.testing.assert_array_equal(scales, expected_scales)
    # By an inverse and not by a division: a half may be rounded the other way.
    assert np.abs(values.astype(int) - expected).max() <= 1
    assert (values == expected).mean() > 0.99
    assert np.abs(seen - x)[0].max() <= np.abs(x[0]).max() / 254 * 1.01
    assert (np.abs(values[:, :32]).max(-1) >= 126).all()
    values, scales = packed_head(kernels, x, spread_out=True)
    scale = (scales.astype(np.uint32) << 16).view(np.float32).repeat(32, axis=1)[:, :head_size]
    np.testing.assert_allclose(
        spread((values * scale) / sizes), x / sizes, rtol=0, atol=np.abs(x / sizes).max() / 20
    )
    np.testing.assert_allclose(
        (values * scale) / sizes, spread(x / sizes), rtol=0, atol=np.abs(x / sizes).max() / 200
    )


@pytest.mark.parametrize("kernels", INSTRUCTION_SETS)
@pytest.mark.parametrize("spread_out", [False, True])
def test_what_is_not_finite_stays_so_in_eight_bits(kernels: str, spread_out: bool) -> None:
    x = np.ones((5, 80), dtype=np.float32)
    x[0, 70], x[1, 33], x[2, 3] = np.nan, np.inf, -np.inf
    x[3], x[4] = 0, 1e-35
    values, scales = packed_head(kernels, x, spread_out=spread_out)
    scale = (scales.astype(np.uint32) << 16).view(np.float32)
    assert [np.isnan(row).any() for row in scale] == [True, True, True, False, False]
    assert not values[3:].any()
    assert not scale[3:].any()
