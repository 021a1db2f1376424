"""Making a connection, and saying in plain words why there is none."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from clientlib.address import Address, TcpAddress, UnixAddress
from clientlib.errors import ClientError, ConnectFailed, DaemonNotRunning
from clientlib.link import Link
from clientlib.steps import Flow, Resolve, Sleep, SocketAddresses, WaitSocket, addresses
from clientlib.timing import Budget

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.EPROTOTYPE})


def connect(address: Address, budget: Budget) -> Flow[Link]:
    """Open a connection.

    Raises:
        DaemonNotRunning: nobody listens there.
        ConnectFailed: it cannot be reached for another reason.
        Timeout: not within the limit.
    """
    if isinstance(address, UnixAddress):
        return (yield from _connect_unix(address, budget))
    return (yield from _connect_tcp(address, budget))


def _connect_unix(address: UnixAddress, budget: Budget) -> Flow[Link]:
    deadline = budget.connect_deadline()
    pause_s = _FIRST_PAUSE_S
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(os.fspath(address.path))
            return Link(sock)
        except BlockingIOError:
            # Linux: the listener's backlog is full. There is nothing to wait on, the kernel does not queue us.
            sock.close()
        except OSError as error:
            sock.close()
            raise _unix_failure(address, error) from error
        except BaseException:
            sock.close()
            raise
        yield Sleep(min(pause_s, budget.until(deadline)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _connect_tcp(address: TcpAddress, budget: Budget) -> Flow[Link]:
    deadline = budget.connect_deadline()
    found = yield from _lookup(address)
    failure: OSError | None = None
    for family, target in found:
        try:
            return (yield from _connect_one(family, target, budget, deadline))
        except OSError as error:
            failure = error
    raise _tcp_failure(address, failure) from failure


def _lookup(address: TcpAddress) -> Flow[SocketAddresses]:
    # A numeric address needs no resolver, and so neither a thread nor a wait.
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return addresses(
            socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        )
    found: SocketAddresses | Exception = yield Resolve(address.host, address.port)
    if isinstance(found, Exception):
        raise ConnectFailed(
            f"{address}: the host cannot be looked up ({found}).", code="unknown_host"
        ) from found
    return found


def _connect_one(family: int, target: object, budget: Budget, deadline: float) -> Flow[Link]:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        result = sock.connect_ex(target)  # type: ignore[arg-type]
        if result in (errno.EINPROGRESS, errno.EINTR):
            while not (yield WaitSocket(sock, True, budget.until(deadline))):
                budget.until(deadline)  # raises when the time is up
            result = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result:
            raise OSError(result, os.strerror(result))
        return Link(sock)
    except BaseException:
        sock.close()
        raise


def _unix_failure(address: UnixAddress, error: OSError) -> ClientError:
    path = address.path
    if error.errno in _NOBODY:
        return DaemonNotRunning(
            f"No Stretto daemon listens on {path}.",
            address=str(path),
            remedy="Start one with `stretto serve`, or name its socket in STRETTO_SOCKET.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConnectFailed(
            f"The socket {path} may not be used by this user.",
            code="permission_denied",
            remedy="A daemon serves only the user who started it; start one of your own with `stretto serve`.",
        )
    if error.errno is None:  # Python's own check, before any system call
        return ConnectFailed(
            f"The socket path {path} is too long for this system ({len(os.fsencode(path))} bytes).",
            code="socket_path_too_long",
            remedy="Give the daemon and STRETTO_SOCKET a path of at most 103 bytes.",
        )
    return ConnectFailed(f"Connecting to {path} failed: {error.strerror}.")


def _tcp_failure(address: TcpAddress, error: OSError | None) -> ClientError:
    if error is not None and error.errno in _NOBODY:
        return DaemonNotRunning(
            f"No Stretto daemon listens on {address}.",
            address=str(address),
            remedy="Start one with `stretto serve`, or check the host and port of base_url.",
        )
    reason = "the host has no address" if error is None else error.strerror
    return ConnectFailed(f"Connecting to {address} failed: {reason}.")
