"""Where the daemon's files are on this platform, unless a setting says otherwise."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import platformdirs

APP = "stretto"

# An address is NUL-terminated in sun_path: 108 bytes on Linux, 104 on macOS.
SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107


def default_state_dir() -> Path:
    """Where the daemon keeps its lock and its history on this platform."""
    return platformdirs.user_state_path(APP)


def default_models_dir() -> Path:
    """Where models are installed on this platform."""
    return platformdirs.user_data_path(APP) / "models"


def default_socket() -> Path:
    """``$XDG_RUNTIME_DIR/stretto/stretto.sock``, or its like where that is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return Path(runtime) / APP / "stretto.sock"
    with warnings.catch_warnings():
        # That the fallback is used is no fault of the user's, and clients find it by the same rule.
        warnings.simplefilter("ignore")
        return platformdirs.user_runtime_path(APP) / "stretto.sock"
