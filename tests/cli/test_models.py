"""``stretto models`` and ``stretto pull`` on a library that is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result

from stretto.weights.library import ModelLibrary
from stretto.weights.manifest import InstalledFile, InstalledModel, write_manifest
from support.weights_tiny import tiny_gguf

Run = Callable[..., Result]
CONTENT = b"GGUF and so on"


@pytest.fixture
def smollm2(own_place: Path) -> InstalledModel:
    """A model in the library, as a pull leaves it; its bytes are nobody's weights."""
    from stretto.weights.catalogue import catalogue_entry

    entry = catalogue_entry("smollm2")
    assert entry is not None
    directory = own_place / "data" / "stretto" / "models" / "smollm2"
    directory.mkdir(parents=True)
    (directory / "m.gguf").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    model = InstalledModel(
        name="smollm2",
        path=directory / "m.gguf",
        reference=entry.source.text,
        sha256=digest,
        size_bytes=len(CONTENT),
        pulled_at=datetime(2026, 11, 30, tzinfo=UTC),
        aliases=("other-name",),
        directory=directory,
        files=(InstalledFile("m.gguf", len(CONTENT), digest),),
    )
    write_manifest(model)
    return model


def test_an_empty_library_says_what_to_do(run: Run) -> None:
    result = run("models")
    assert result.exit_code == 0
    assert "No model is installed in " in result.stdout
    assert "Get one: stretto pull smollm2" in result.stdout
    document = json.loads(run("models", "--json").stdout)
    assert document["installed"] == []
    assert document["available"][0]["name"] == "smollm2"


def test_installed_and_available(run: Run, smollm2: InstalledModel) -> None:
    lines = run("models").stdout.splitlines()
    assert lines[1].split()[:6] == ["smollm2", "generator", "14", "B", "2026-11-30", "ok"]
    assert not any(line.startswith("smollm2") for line in lines[2:])
    (installed,) = json.loads(run("models", "--json").stdout)["installed"]
    assert installed["path"] == str(smollm2.path)
    assert installed["damage"] is None


def test_damage_is_shown(run: Run, smollm2: InstalledModel) -> None:
    smollm2.path.write_bytes(CONTENT[:-1])
    assert "damaged: " in run("models").stdout
    assert json.loads(run("models", "--json").stdout)["installed"][0]["damage"]


def test_models_live_where_the_settings_say(run: Run, smollm2: InstalledModel, tmp_path: Path) -> None:
    result = run("models", "--json", "--models-dir", str(tmp_path / "other"))
    assert json.loads(result.stdout) | {"available": []} == {
        "models_dir": str(tmp_path / "other"),
        "installed": [],
        "available": [],
    }


@pytest.mark.parametrize("name", ["smollm2", "other-name"])
def test_rm(run: Run, smollm2: InstalledModel, name: str) -> None:
    result = run("models", "rm", name)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "removed smollm2 (14 B)\n")
    assert not smollm2.path.exists()
    assert run("models", "rm", name).exit_code == 1


def test_pull_of_what_is_there_needs_no_network_and_prints_the_path(
    run: Run, smollm2: InstalledModel
) -> None:
    result = run("pull")
    assert (result.exit_code, result.stdout) == (0, f"{smollm2.path}\n")
    assert result.stderr == "smollm2 is installed (14 B)\n"


def test_verify_reads_it_again(run: Run, smollm2: InstalledModel) -> None:
    result = run("pull", "smollm2", "--verify")
    assert (result.exit_code, result.stdout) == (0, f"{smollm2.path}\n")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("verifying")
    assert lines[-1] == f"smollm2 is installed (14 B, sha256 {smollm2.sha256})"


def test_pull_of_a_path(run: Run, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    result = run("pull", f"file:{path}")
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert result.stderr.endswith(", used where it lies\n")
    assert run("pull", str(tmp_path / "none.gguf")).exit_code == 1


def test_pull_of_a_path_that_is_no_whole_model(run: Run, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    result = run("pull", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "truncated" in result.stderr


def test_an_interrupted_pull_says_that_it_can_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelLibrary, "pull", interrupted)
    result = run("pull")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.strip() == "interrupted; the same command goes on from here"


def test_a_reference_of_no_form_is_a_bad_argument(run: Run) -> None:
    result = run("pull", "https://example.org/model.gguf")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: The model reference ")
