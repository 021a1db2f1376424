"""Families that only ``transformers`` knows, over our KV memory: its own plain attention is the truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto.backends.torch import TorchBackend  # noqa: E402
from stretto.errors import StartupError  # noqa: E402
from stretto.weights import ForeignCheckpoint, ModelSource, open_any, open_model  # noqa: E402
from support.backend_driver import Driver, silent  # noqa: E402
from support.torch_runs import reference_logits, reference_of_directory  # noqa: E402
from support.weights_families import SHAPE, WINDOW, tiny_family  # noqa: E402
from support.weights_foreign import tiny_foreign  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

TOKENS = np.random.default_rng(7).integers(0, SHAPE.vocab, 61).tolist()


def load(path: Path) -> TorchBackend:
    source = open_any(path)
    assert isinstance(source, ForeignCheckpoint)
    backend = TorchBackend(source, device="cpu", dtype="float32", threads=1)
    try:
        backend.load(silent)
    finally:
        source.close()
    return backend


@pytest.mark.parametrize("name", ["GPTNeoX", "Olmo2", "StableLm", "Granite", "Olmo3", "OPT"])
def test_logits_equal_those_of_its_own_attention(tmp_path: Path, name: str) -> None:
    path = tiny_foreign(tmp_path, name)
    wanted = reference_logits(reference_of_directory(path), TOKENS)
    backend = load(path)
    groups = backend._loaded().spec.layer_groups
    if name == "Olmo3":
        assert [(group.layers, group.window_tokens) for group in groups] == [(2, WINDOW), (1, None)]
    run = Driver(backend, blocks=70, shuffled=True, groups=len(groups))
    whole = run.prefill(run.start(TOKENS), 61)
    assert float(np.abs(whole - wanted).max()) < 1e-4
    # Two at once, of which one decodes.
    first, second = run.start(TOKENS), run.start(TOKENS[:30])
    run.step([(first, 50)], rows=0)
    found = []
    while first.cached < 61 or second.cached < 30:
        parts = [(first, 1)] if first.cached < 61 else []
        parts += [(second, min(7, 30 - second.cached))] if second.cached < 30 else []
        logits = run.step(parts)
        if len(logits) == len(parts) and parts[0][0] is first:
            found.append(logits[0])
    assert float(np.abs(np.concatenate(found) - wanted[50:]).max()) < 1e-4
    stats = backend.stats()
    assert stats["model_code"] == "transformers"
    assert "architectures is" in str(stats["model_code_reason"])


@pytest.mark.parametrize(
    ("name", "words"),
    [("Bloom", "3 of its 3 layers look at other tokens by code of their own"), ("Mamba", "keep a state")],
)
def test_what_cannot_be_paged_is_refused_with_the_reason(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(StartupError, match="cannot compute it over the daemon's KV memory") as caught:
        load(tiny_foreign(tmp_path, name))
    assert caught.value.code == "model_unsupported"
    assert words in caught.value.message


def test_who_opens_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tiny_family(tmp_path / "own", "llama"), tiny_foreign(tmp_path / "other", "GPTNeoX")
    assert isinstance(open_any(own), ModelSource)
    with pytest.raises(StartupError, match="GPTNeoXForCausalLM"):
        open_model(other)
    with monkeypatch.context() as without:
        without.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(StartupError, match="GPTNeoXForCausalLM") as caught:
            open_any(other)
        assert "pip install 'stretto[torch,transformers]'" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"quantization_config": {"bits": 4}}, "weights are packed"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    tmp_path: Path, values: dict[str, object], words: str
) -> None:
    path = tiny_foreign(tmp_path, "GPTNeoX")
    config = json.loads((path / "config.json").read_text())
    config.pop("rope_parameters", None)
    (path / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(StartupError, match=words) as caught:
        open_any(path)
    assert caught.value.code == "model_unsupported"
