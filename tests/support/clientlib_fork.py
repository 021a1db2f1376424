"""Work done in a forked child."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads. That such programs exist is why this is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(work: Callable[[], bool]) -> int:
    """Run ``work`` in a forked child; 0 when it returned True."""
    child = fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
