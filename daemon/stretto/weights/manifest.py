"""An installed model and its manifest, ``stretto-model.json``: the mark that a model's directory is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, cast

from stretto.errors import StartupError
from stretto.weights.durable import hash_file, write_whole

__all__ = [
    "MANIFEST_NAME",
    "SCRATCH_NAME",
    "InstalledFile",
    "InstalledModel",
    "read_manifest",
    "tree_sha256",
    "write_manifest",
]

MANIFEST_NAME = "stretto-model.json"
SCRATCH_NAME = ".pull"  # in a model's directory: the partial work of an unfinished pull
_FORMAT = 1


@dataclass(frozen=True)
class InstalledFile:
    """One file of a model: its path relative to the model's directory, its size and SHA-256."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class InstalledModel:
    """A model that can be opened without any network.

    Attributes:
        name: its name in the library; for a path in place, derived from the path.
        path: the GGUF file, or the directory of a Hugging Face checkpoint.
        reference: where it came from, as a reference that pulls the same again.
        sha256: of the file; of a directory, over its sorted list of hashes; None when used in place (never hashed).
        size_bytes: of all its files.
        pulled_at: UTC; None when used in place.
        aliases: other names to serve it under.
        kind: ``generator`` or ``embedder``.
        licence: as its source states it, or None.
        revision: the exact commit it was taken from, where its source has commits.
        directory: its directory in the library; None when used in place.
        files: every file that belongs to it; empty when used in place.
    """

    name: str
    path: Path
    reference: str
    sha256: str | None
    size_bytes: int
    pulled_at: datetime | None
    aliases: tuple[str, ...] = ()
    kind: Literal["generator", "embedder"] = "generator"
    licence: str | None = None
    revision: str | None = None
    directory: Path | None = None
    files: tuple[InstalledFile, ...] = ()

    def damage(self) -> str | None:
        """The first thing wrong with its files as far as sizes tell, in words, or None."""
        if self.directory is None:
            return None if self.path.exists() else f"{self.path} is gone"
        return next((what for _, what in self._faults()), None)

    def drop_damaged(self, on_bytes: Callable[[int], None]) -> bool:
        """Hash every file again and delete the wrong ones; True if any was wrong. ``on_bytes`` hears how far it is."""
        assert self.directory is not None
        wrong = {path for path, _ in self._faults()}
        done_bytes = 0
        for file in self.files:
            path = self.directory / file.path
            if file.path not in wrong:

                def told(here_bytes: int, before_bytes: int = done_bytes) -> None:
                    on_bytes(before_bytes + here_bytes)

                if hash_file(path, told) != file.sha256:
                    wrong.add(file.path)
            if file.path in wrong:
                path.unlink(missing_ok=True)
            done_bytes += file.size_bytes
        return bool(wrong)

    def _faults(self) -> Iterator[tuple[str, str]]:
        assert self.directory is not None
        for file in self.files:
            path = self.directory / file.path
            if not path.is_file():
                yield file.path, f"{file.path} is missing"
            elif (size_bytes := path.stat().st_size) != file.size_bytes:
                yield file.path, f"{file.path} has {size_bytes:,} bytes and should have {file.size_bytes:,}"


def tree_sha256(files: Iterable[InstalledFile]) -> str:
    """One hash for several files: over the sorted lines ``path NUL sha256 LF``."""
    lines = sorted(f"{file.path}\0{file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_manifest(model: InstalledModel) -> None:
    """Write the manifest of ``model`` into its directory: from here on it counts as installed."""
    assert model.directory is not None
    assert model.pulled_at is not None
    document = {
        "format": _FORMAT,
        "name": model.name,
        "aliases": list(model.aliases),
        "kind": model.kind,
        "reference": model.reference,
        "licence": model.licence,
        "revision": model.revision,
        "main": model.path.relative_to(model.directory).as_posix(),
        "sha256": model.sha256,
        "pulled_at": model.pulled_at.isoformat(timespec="seconds"),
        "files": [{"path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in model.files],
    }
    write_whole(model.directory / MANIFEST_NAME, json.dumps(document, indent=2).encode() + b"\n")


def read_manifest(directory: Path) -> InstalledModel | None:
    """The model installed in ``directory``, or None where no (readable) manifest says that one is complete.

    Raises:
        StartupError: ``model_unsupported``: the manifest was written by a newer version of Stretto.
    """
    path = directory / MANIFEST_NAME
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise StartupError(f"The manifest {path} cannot be read: {error}.", code="model_invalid") from error
    if not isinstance(document, dict):
        return None
    version = document.get("format")
    if isinstance(version, int) and version > _FORMAT:
        raise StartupError(
            f"The manifest {path} has format {version}; this version of Stretto reads up to {_FORMAT}.",
            code="model_unsupported",
            remedy="Use a newer Stretto, or another model directory (STRETTO_MODELS_DIR).",
        )
    try:
        return _from_document(directory, document)
    except (KeyError, TypeError, ValueError):
        return None


def _from_document(directory: Path, document: dict[str, object]) -> InstalledModel:
    files = tuple(
        InstalledFile(_text(entry, "path"), _count(entry, "size_bytes"), _text(entry, "sha256"))
        for entry in cast("list[dict[str, object]]", document["files"])
    )
    if not files:
        raise ValueError("no files")
    for file in files:
        if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            raise ValueError("a path leaves the directory")
    main = _text(document, "main")
    if main != "." and main not in {file.path for file in files}:
        raise ValueError("the main file is not among the files")
    pulled_at = datetime.fromisoformat(_text(document, "pulled_at"))
    if pulled_at.tzinfo is None:
        raise ValueError("a time without its zone")
    licence, revision = document["licence"], document["revision"]
    return InstalledModel(
        name=directory.name,
        path=directory / main,
        reference=_text(document, "reference"),
        sha256=_text(document, "sha256"),
        size_bytes=sum(file.size_bytes for file in files),
        pulled_at=pulled_at,
        aliases=tuple(str(alias) for alias in cast("list[object]", document["aliases"])),
        kind="embedder" if document["kind"] == "embedder" else "generator",
        licence=licence if isinstance(licence, str) else None,
        revision=revision if isinstance(revision, str) else None,
        directory=directory,
        files=files,
    )


def _text(document: dict[str, object], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise TypeError(key)
    return value


def _count(document: dict[str, object], key: str) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(key)
    return value
