"""Where the daemon's socket is when nobody says so: the same rule as the daemon's, without importing it."""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "STRETTO_SOCKET"
_APP = "stretto"
_SOCKET_NAME = "stretto.sock"


def default_socket_path(environ: Mapping[str, str] | None = None) -> Path:
    """The socket of this user's daemon.

    ``STRETTO_SOCKET``, else ``stretto/stretto.sock`` in ``XDG_RUNTIME_DIR``, else in the directory that platformdirs'
    ``user_runtime_dir`` has for this platform: on macOS ``~/Library/Caches/TemporaryItems``, elsewhere
    ``/run/user/<uid>`` when it is private to the user, else ``runtime-<uid>`` in the temporary directory.

    Args:
        environ: the environment to read; the process's own when None.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(SOCKET_VARIABLE):
        return Path(named).expanduser()
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # The XDG specification has relative paths ignored.
    base = Path(runtime) if posixpath.isabs(runtime) else _platform_runtime_dir(sys.platform)
    return base / _APP / _SOCKET_NAME


def _platform_runtime_dir(platform: str) -> Path:
    """What platformdirs answers when ``XDG_RUNTIME_DIR`` is not set (its 4.14 series, unix.py and macos.py)."""
    if platform == "darwin":
        return Path("~/Library/Caches/TemporaryItems").expanduser()
    uid = os.geteuid()
    if platform.startswith("openbsd"):
        base = Path(f"/tmp/run/user/{uid}")
    elif platform.startswith(("freebsd", "netbsd")):
        base = Path(f"/var/run/user/{uid}")
    else:
        base = Path(f"/run/user/{uid}")
    return base if _is_private(base, uid) else _temporary_dir() / f"runtime-{uid}"


def _is_private(path: Path, uid: int) -> bool:
    """Whether ``path`` is a real directory of ours with mode 0700, as the XDG specification asks of a runtime directory."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and stat.S_IMODE(info.st_mode) == 0o700


def _temporary_dir() -> Path:
    # Imported late: tempfile drags in random, shutil and the compressors, and is needed only without a runtime directory.
    import tempfile

    return Path(tempfile.gettempdir())
