"""What the daemon tells of itself: one line a phase on stderr, through a thread that a slow reader cannot stop."""

from stretto.observe.lifecycle import DaemonLog, LifecycleLog
from stretto.observe.setup import LogConfig, setup_logging
from stretto.observe.writer import LogWriter

__all__ = ["DaemonLog", "LifecycleLog", "LogConfig", "LogWriter", "setup_logging"]
