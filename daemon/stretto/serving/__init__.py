"""HTTP serving under guard; knows nothing of models. ``stretto.serving.server`` has the server itself, and imports hypercorn."""

from stretto.serving.activation import adopt_listen_fds
from stretto.serving.client_watch import ClientDisconnected, read_body, run_until_disconnect
from stretto.serving.drain import Drain, drain_error, drain_of
from stretto.serving.event_stream import EventStream
from stretto.serving.host_guard import CrossOrigin, HostGuard
from stretto.serving.limits import Counters, Limits
from stretto.serving.lock_file import LockFile, LockHeld
from stretto.serving.peer import Peer
from stretto.serving.replies import Header, Refusal, RefusalBody
from stretto.serving.sd_notify import Notifier
from stretto.serving.tcp_binding import bind_tcp
from stretto.serving.unix_binding import UnixBinding, bind_unix

__all__ = [
    "ClientDisconnected",
    "Counters",
    "CrossOrigin",
    "Drain",
    "EventStream",
    "Header",
    "HostGuard",
    "Limits",
    "LockFile",
    "LockHeld",
    "Notifier",
    "Peer",
    "Refusal",
    "RefusalBody",
    "UnixBinding",
    "adopt_listen_fds",
    "bind_tcp",
    "bind_unix",
    "drain_error",
    "drain_of",
    "read_body",
    "run_until_disconnect",
]
