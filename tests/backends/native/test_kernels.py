"""Every kernel against float32 truth, on every instruction set that this machine has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.backends.native.library import ENCODING_NUMBERS, Library, address
from stretto.weights.blocks import RawTensor, dequantise
from support.native_kernels import (
    attend,
    attend_reference,
    make_cache,
    make_matrix,
    multiply,
    quantised_activations,
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
    for number, (columns, width) in enumerate([(max(block, 32), 1), (3 * max(block, 32), 37), (256, 48)]):
        columns = columns if encoding not in PLAIN else columns + 1
        packed = make_matrix(LIBRARY, encoding, width, columns, seed=number)
        rng = np.random.default_rng(number)
        bias = rng.normal(size=width).astype(np.float32) if number else None
        for rows in (1, 2, 7, 17):
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
    LIBRARY.call.stretto_quantise(
        kernels.encode(), address(x), x.size, address(values), address(rest) if fine else None,
        address(scales), address(sums), address(halves),
    )  # fmt: skip
    expected = quantised_activations(x, fine=fine)
    expected[0] = 0  # beside anything else these are zeros; their scale has no inverse in float32
    seen = (values + rest / np.float32(254)).reshape(6, 3, 32) * scales[:, :, None]
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
@pytest.mark.parametrize("bf16", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("block_tokens", [4, 16, 24, 32])
def test_attention_reads_scattered_blocks(kernels: str, bf16: bool, block_tokens: int) -> None:
    """The cache is full of NaN wherever this sequence has not written: reading it would show."""
    for head_size, kv_heads, per_position, start, rows in [
        (16, 1, 1, 0, 1), (64, 2, 3, 99, 1), (64, 1, 4, 61, 8), (32, 3, 7, 5, 4), (128, 1, 16, 200, 2), (64, 1, 32, 47, 1),
    ]:  # fmt: skip
        cache = make_cache(start + rows, kv_heads, head_size, block_tokens, bf16, seed=start)
        queries = (
            np.random.default_rng(rows).normal(size=(rows, per_position, head_size)).astype(np.float32) * 3
        )
        for kv_head in range(kv_heads):
            out = attend(LIBRARY, kernels, cache, queries, start, kv_head)
            expected = attend_reference(cache, queries, start, kv_head)
            np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
