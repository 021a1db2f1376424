"""Who is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

import trio

_UCRED = struct.Struct("3i")
# macOS, <sys/ucred.h> and <sys/un.h>: struct xucred { u_int version; uid_t uid; short ngroups; gid_t groups[16]; }
_XUCRED = struct.Struct("IIh2x16I")
_XUCRED_VERSION = 0
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 0x001
_LOCAL_PEERPID = 0x002


@dataclass(frozen=True, slots=True)
class Peer:
    """Process and user that connected. The ids are those of the moment of the connect."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket | trio.socket.SocketType) -> Peer | None:
    """The peer of a connected Unix socket; None for any other kind of socket.

    Raises:
        OSError: the platform cannot tell. A caller that needs to know must refuse then.
    """
    if sock.family != socket.AF_UNIX:
        return None
    if sys.platform == "darwin":
        return _darwin_peer(sock)
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(packed))


def _darwin_peer(sock: socket.socket | trio.socket.SocketType) -> Peer:
    packed = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
    version, uid, _count, *groups = _XUCRED.unpack(packed)
    if version != _XUCRED_VERSION:
        raise OSError(f"LOCAL_PEERCRED has version {version}, not {_XUCRED_VERSION}")
    pid = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
    return Peer(pid, uid, groups[0])
