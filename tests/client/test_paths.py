"""Where the socket is looked for, against platformdirs."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS

from clientlib import default_socket_path
from clientlib.paths import _is_private, _platform_runtime_dir


def theirs() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns about every fall-back
        return Path(platformdirs.user_runtime_dir("stretto")) / "stretto.sock"


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


@pytest.mark.usefixtures("no_variables")
class TestDefault:
    def test_without_variables_as_platformdirs(self) -> None:
        assert default_socket_path() == theirs()

    def test_runtime_dir_as_platformdirs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = tmp_path / "run"
        runtime.mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert default_socket_path() == theirs() == runtime / "stretto" / "stretto.sock"

    def test_relative_runtime_dir_is_ignored_as_by_platformdirs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = theirs()
        monkeypatch.setenv("XDG_RUNTIME_DIR", "run/me")
        assert default_socket_path() == theirs() == expected

    @pytest.mark.skipif(sys.platform == "darwin", reason="macOS has its own directory")
    def test_temporary_directory_as_platformdirs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert default_socket_path() == theirs()

    def test_the_variable_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
        monkeypatch.setenv("STRETTO_SOCKET", "/some/where.sock")
        assert default_socket_path() == Path("/some/where.sock")

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STRETTO_SOCKET", "")
        assert default_socket_path() == theirs()

    def test_macos_as_platformdirs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert _platform_runtime_dir("darwin") / "stretto" == Path(MacOS("stretto").user_runtime_dir)


def test_an_environment_can_be_given() -> None:
    assert default_socket_path({"STRETTO_SOCKET": "/a"}) == Path("/a")
    assert default_socket_path({"XDG_RUNTIME_DIR": "/b"}) == Path("/b/stretto/stretto.sock")


def test_private_means_a_real_directory_of_ours_with_mode_0700(tmp_path: Path) -> None:
    uid = tmp_path.stat().st_uid
    good = tmp_path / "good"
    good.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "file").touch(0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert _is_private(good, uid)
    assert not _is_private(good, uid + 1)
    assert not any(_is_private(tmp_path / name, uid) for name in ("link", "file", "open", "missing"))
