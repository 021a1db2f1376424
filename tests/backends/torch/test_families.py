"""Every family against ``transformers`` in float32: chunks of odd sizes, ragged steps, a prefix that is used again, and windows
that have been left behind.

The reference computes each sequence in one go, over no cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.backends.base import Float32Array, LayerGroup  # noqa: E402
from stretto.backends.torch import TorchBackend  # noqa: E402
from support.backend_driver import Driver, RunningSequence  # noqa: E402
from support.gguf_families import ARCHITECTURES, convert  # noqa: E402
from support.torch_runs import loaded, reference_logits, reference_of_directory  # noqa: E402
from support.weights_families import FAMILIES, SHAPE, WINDOW, randomise, tiny_family  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*original_max_position:UserWarning")]

TOLERANCE = 1e-4
# Layers that read others' keys and values pass their rounding on: 1.01e-4 where PyTorch computes with AVX2.
TOLERANCES = {"gemma4-shared": 2e-4}
TOKENS = 61
LENGTHS = (TOKENS, 9, 30, 17)
BLOCK_TOKENS = 4


@dataclass(frozen=True)
class Made:
    """A model on disk, a text, and the reference's logits for it and for its first half with another end."""

    path: Path
    tokens: list[int]
    wanted: Float32Array
    branch: list[int]
    branch_wanted: Float32Array
    backend: TorchBackend


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Makes a model once."""
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            path = tiny_family(tmp_path_factory.mktemp(name), name, seed=len(known))
            model = reference_of_directory(path)
            rng = np.random.default_rng(7)
            tokens = rng.integers(0, SHAPE.vocab, TOKENS).tolist()
            branch = tokens[:36] + rng.integers(0, SHAPE.vocab, 12).tolist()
            wanted, other = (reference_logits(model, text) for text in (tokens, branch))
            known[name] = Made(path, tokens, wanted, branch, other, loaded(path))
        return known[name]

    return make


def groups_of(backend: TorchBackend) -> tuple[LayerGroup, ...]:
    return backend._loaded().spec.layer_groups


def driver(backend: TorchBackend, *, shuffled: bool = False) -> Driver:
    groups = len(groups_of(backend))
    return Driver(backend, blocks=80, block_tokens=BLOCK_TOKENS, shuffled=shuffled, groups=groups)


def assert_close(found: Float32Array, wanted: Float32Array, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    assert float(np.abs(found - wanted).max()) < tolerance


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_chunks_over_runs_and_shuffled_blocks(made: Callable[[str], Made], name: str) -> None:
    model = made(name)
    for shuffled, chunks in ((False, (TOKENS, 7)), (True, (13, 1))):
        run = driver(model.backend, shuffled=shuffled)
        for chunk in chunks:
            assert_close(
                run.prefill(run.start(model.tokens), chunk), model.wanted, TOLERANCES.get(name, TOLERANCE)
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_ragged_steps_of_prefills_and_decodes(made: Callable[[str], Made], name: str) -> None:
    model = made(name)
    run = driver(model.backend, shuffled=True)
    sequences = [run.start(model.tokens[:length]) for length in LENGTHS]
    found: list[list[Float32Array]] = [[] for _ in sequences]
    step = 0
    while any(s.cached < len(s.tokens) for s in sequences):
        parts, who = [], []
        for index, sequence in enumerate(sequences):
            left = len(sequence.tokens) - sequence.cached
            if left and step >= 2 * index:
                decoding = index % 2 == 0 and sequence.cached > 0
                parts.append((sequence, 1 if decoding else min(left, 5 + index)))
                who.append(index)
        for index, logits in zip(who, run.step(parts), strict=True):
            found[index].append(logits)
        step += 1
    for length, rows in zip(LENGTHS, found, strict=True):
        # LongRoPE turns by the longest sequence that there may be; the reference by the one that it computes.
        if name != "phi4" or length == TOKENS:
            assert_close(np.concatenate(rows), model.wanted[:length], TOLERANCES.get(name, TOLERANCE))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prefix_is_used_again(made: Callable[[str], Made], name: str) -> None:
    model = made(name)
    run = driver(model.backend)
    first = run.start(model.tokens)
    run.prefill(first, 10)
    shared = 32
    second = run.start(model.branch)
    # The shared blocks are read where they lie; of a window's layers only those that the window reaches.
    kept = shared // BLOCK_TOKENS
    for table, other, group in zip(second.tables, first.tables, groups_of(model.backend), strict=True):
        table[:kept] = other[:kept]
        gone = 0 if group.window_tokens is None else (shared + 1 - group.window_tokens) // BLOCK_TOKENS
        table[:gone] = [-1] * gone
    again = RunningSequence(model.branch, second.tables, shared)
    assert_close(run.prefill(again, 5), model.branch_wanted[shared:])
    assert_close(run.prefill(run.start(model.tokens), 10), model.wanted)


def test_windows_are_layer_groups_of_their_own(made: Callable[[str], Made]) -> None:
    def groups(name: str) -> list[tuple[str, int, int, int, int | None]]:
        return [
            (group.name, group.layers, group.kv_heads, group.head_size, group.window_tokens)
            for group in groups_of(made(name).backend)
        ]

    assert groups("llama") == [("full", 3, 2, 16, None)]
    assert groups("mistral") == [(f"sliding-{WINDOW}", 3, 2, 16, WINDOW)]
    assert groups("gemma3") == [(f"sliding-{WINDOW}", 2, 2, 16, WINDOW), ("full", 1, 2, 16, None)]
    assert groups("gemma4-experts") == [(f"sliding-{WINDOW}", 4, 2, 16, WINDOW), ("full", 2, 1, 32, None)]
    # The last three of its six layers read the keys and values of layers before them.
    assert groups("gemma4-shared") == [(f"sliding-{WINDOW}", 2, 2, 16, WINDOW), ("full", 1, 2, 32, None)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gguf_files(made: Callable[[str], Made], name: str, tmp_path: Path) -> None:
    changes = {}
    if name == "qwen3-moe":
        changes = {"mlp_only_layers": []}
    elif name == "smollm3":
        changes = {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}
    elif name == "gemma2":
        changes = {"query_pre_attn_scalar": 16}  # the format has no key for it: it is the head size
    elif name == "gemma3":
        changes = {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}
    model = made(name)
    directory, wanted = model.path, model.wanted
    if changes:
        directory = tiny_family(tmp_path / "hf", name, seed=9, **changes)
        wanted = reference_logits(reference_of_directory(directory), model.tokens)
    run = driver(loaded(convert(directory, name, tmp_path / "m.gguf")))
    assert_close(run.prefill(run.start(model.tokens), 16), wanted)


@pytest.mark.parametrize("older_names", [False, True])
def test_the_language_model_of_one_that_sees(tmp_path: Path, older_names: bool) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    directory = tiny_family(tmp_path, "gemma3")
    text = transformers.Gemma3TextConfig.from_pretrained(directory)
    vision = transformers.SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    randomise(model)
    model.save_pretrained(directory)
    if older_names:
        tensors = load_file(directory / "model.safetensors")
        renamed = {
            name.replace("model.language_model.", "language_model.model.").replace(
                "model.vision", "vision"
            ): value
            for name, value in tensors.items()
        }
        save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})
    tokens = np.random.default_rng(3).integers(0, SHAPE.vocab, 40).tolist()
    wanted = reference_logits(model, tokens)
    run = driver(loaded(directory))
    assert_close(run.prefill(run.start(tokens), 9), wanted)


def test_longrope_turns_by_the_longest_sequence(tmp_path: Path) -> None:
    """Within the original context the short factors count, if no sequence may become longer than it."""
    path = tiny_family(tmp_path, "phi4")
    tokens = np.random.default_rng(3).integers(0, SHAPE.vocab, 30).tolist()
    wanted = reference_logits(reference_of_directory(path), tokens)
    short = driver(loaded(path, context_tokens=32))
    assert_close(short.prefill(short.start(tokens), 8), wanted)
    long = driver(loaded(path))
    assert float(np.abs(long.prefill(long.start(tokens), 8) - wanted).max()) > 0.01


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma4-shared", "phi4"])
def test_bfloat16_is_near(made: Callable[[str], Made], name: str) -> None:
    model = made(name)
    run = driver(loaded(model.path, dtype="bfloat16"))
    found = run.prefill(run.start(model.tokens), 7)
    assert float(np.sqrt(np.mean((found - model.wanted) ** 2))) < 0.12 * float(model.wanted.std())
