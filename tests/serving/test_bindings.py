"""Binding: clear refusals, privacy, no theft, nothing to clean by hand; peers; sockets handed over."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from starlette.types import Receive, Scope, Send

from stretto.errors import StartupError
from stretto.serving import LockFile, LockHeld, Peer, adopt_listen_fds, bind_tcp, bind_unix
from stretto.serving.server import address_of
from support.serving_server import get, hello, parse_replies, running


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A private directory with a short name (socket paths are bounded)."""
    found = tmp_path / "run"
    found.mkdir(mode=0o700)
    return found


def refusal(call: object, *args: object) -> StartupError:
    with pytest.raises(StartupError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value


def test_tcp_any_port() -> None:
    with bind_tcp("127.0.0.1", 0) as sock:
        assert sock.getsockname()[1] > 0
        assert address_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    with bind_tcp("localhost", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


def test_tcp_ipv6_address() -> None:
    try:
        probe = socket.socket(socket.AF_INET6)
        probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    probe.close()
    with bind_tcp("::1", 0) as sock:
        assert address_of(sock).startswith("http://[::1]:")


def test_tcp_port_in_use_names_port_and_remedy() -> None:
    with bind_tcp("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        error = refusal(bind_tcp, "127.0.0.1", port)
    assert error.code == "bind_failed"
    assert str(port) in error.message
    assert "--port 0" in str(error)


@pytest.mark.parametrize(
    ("host", "port", "word"),
    [
        ("192.0.2.1", 0, "no such address"),
        ("no-such-host.invalid", 0, "not known"),
        ("a" * 70 + ".example", 0, "not known"),
        ("127.0.0.1", 65536, "65535"),
    ],
)
def test_tcp_other_refusals(host: str, port: int, word: str) -> None:
    error = refusal(bind_tcp, host, port)
    assert error.code == "bind_failed"
    assert word in error.message
    assert error.remedy


def test_tcp_restart_within_time_wait() -> None:
    with bind_tcp("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = first.accept()
        accepted.close()
        client.recv(1)
        client.close()
    with bind_tcp("127.0.0.1", port):
        pass


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177, 0o777])
def test_unix_modes_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "a" / "b" / "s.sock"
    before = os.umask(umask)
    try:
        binding = bind_unix(path)
    finally:
        os.umask(before)
    with binding:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
        assert address_of(binding.socket) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_unix_second_binding_is_refused_with_the_pid_and_steals_nothing(directory: Path) -> None:
    path = directory / "s.sock"
    with bind_unix(path):
        inode = path.lstat().st_ino
        error = refusal(bind_unix, path)
        assert error.code == "already_running"
        assert str(os.getpid()) in error.message
        assert path.lstat().st_ino == inode
    with bind_unix(path):
        pass


def test_unix_socket_of_a_killed_daemon_is_replaced(directory: Path) -> None:
    path = directory / "s.sock"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom stretto.serving import bind_unix\n"
        "binding = bind_unix(Path(sys.argv[1]))\nprint('bound', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"bound\n"
        error = refusal(bind_unix, path)
        assert error.code == "already_running"
        assert str(child.pid) in error.message
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path.exists()
    with bind_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_unix_live_socket_of_another_program_is_not_stolen(directory: Path) -> None:
    path = directory / "s.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        for _ in range(2):  # the second probe meets a full backlog
            error = refusal(bind_unix, path)
            assert error.code == "already_running"
        assert path.exists()
    with bind_unix(path):
        pass


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_unix_something_else_in_the_way_is_refused_and_kept(directory: Path, kind: str) -> None:
    path = directory / "s.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(directory / "elsewhere")
    error = refusal(bind_unix, path)
    assert error.code == "bind_failed"
    assert "not a socket" in error.message
    assert path.lstat()


def test_unix_path_too_long(directory: Path) -> None:
    error = refusal(bind_unix, directory / ("x" * 120))
    assert error.code == "bind_failed"
    assert "107" in error.message
    assert not (directory / ("x" * 120 + ".lock")).exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_unix_directory_others_can_write_to(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    error = refusal(bind_unix, shared / "s.sock")
    assert error.code == "bind_failed"
    assert "chmod 700" in str(error)


def test_unix_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    error = refusal(bind_unix, tmp_path / "s.sock")
    assert error.code == "bind_failed"
    assert "12345" in error.message


def test_unix_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(bind_unix, tmp_path / "file" / "s.sock").code == "bind_failed"
    assert refusal(bind_unix, tmp_path / "file" / "deeper" / "s.sock").code == "bind_failed"


def test_unix_close_leaves_what_is_not_its_own(directory: Path) -> None:
    path = directory / "s.sock"
    binding = bind_unix(path)
    path.unlink()
    path.write_text("somebody else's")
    binding.close()
    binding.close()
    assert path.read_text() == "somebody else's"


def test_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with LockFile(path) as lock:
        with pytest.raises(LockHeld) as caught:
            LockFile(path)
        assert caught.value.pid == os.getpid()
        lock.close()
        LockFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"  # it has been executed: only now are descriptors closed
        lock.close()
        LockFile(tmp_path / "lock").close()


async def test_peer_is_known_on_a_unix_socket(directory: Path) -> None:
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["peer"])
        assert scope["client"] is None
        await hello(scope, receive, send)

    async with running(app, unix_path=directory / "s.sock") as server:
        async with await server.connect() as client:
            await client.send(get("/", "Connection: close"))
            assert parse_replies(await client.read_all())[0].status == 200
    assert seen == [Peer(os.getpid(), os.getuid(), os.getgid())]


async def test_there_is_no_peer_on_tcp() -> None:
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["peer"])
        assert scope["client"][0] == "127.0.0.1"
        await hello(scope, receive, send)

    async with running(app) as server:
        await server.get()
    assert seen == [None]


# Sockets handed over by a service manager ------------------------------------------------------------------------------


def passed_on(count: int, names: str | None = None, pid: int | None = None) -> dict[str, str]:
    environ = {"LISTEN_FDS": str(count), "LISTEN_PID": str(pid or os.getpid())}
    return environ if names is None else {**environ, "LISTEN_FDNAMES": names}


def duplicate(socks: list[socket.socket]) -> int:
    """Lay copies at consecutive free descriptors; the first one's number."""
    first = 200
    for offset, sock in enumerate(socks):
        os.dup2(sock.fileno(), first + offset, inheritable=True)
    return first


def test_adopting_named_sockets() -> None:
    with bind_tcp("127.0.0.1", 0) as one, bind_tcp("127.0.0.1", 0) as two:
        first = duplicate([one, two, one])
        adopted = adopt_listen_fds(passed_on(3, "http:control:http"), first_fd=first)
        assert {name: [s.getsockname() for s in socks] for name, socks in adopted.items()} == {
            "http": [one.getsockname(), one.getsockname()],
            "control": [two.getsockname()],
        }
        for socks in adopted.values():
            for sock in socks:
                assert not sock.get_inheritable()
                sock.close()


def test_sockets_for_another_process_are_left_alone() -> None:
    assert adopt_listen_fds(passed_on(2, pid=1)) == {}
    assert adopt_listen_fds({}) == {}


@pytest.mark.parametrize(
    "environ", [{"LISTEN_FDS": "many"}, {"LISTEN_FDS": "-1"}, {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a:b"}]
)
def test_senseless_hand_over_is_refused(environ: dict[str, str]) -> None:
    error = refusal(adopt_listen_fds, {"LISTEN_PID": str(os.getpid()), **environ})
    assert error.code == "bind_failed"


def test_a_descriptor_that_does_not_listen_is_refused() -> None:
    with socket.socket() as idle:
        first = duplicate([idle])
        error = refusal(lambda: adopt_listen_fds(passed_on(1), first_fd=first))
        assert "not a listening" in error.message
        os.close(first)
    with Path("/dev/null").open("rb") as file:
        os.dup2(file.fileno(), 200)
        error = refusal(lambda: adopt_listen_fds(passed_on(1), first_fd=200))
        assert "no socket" in error.message
        os.close(200)


async def test_systemd_hands_over_and_the_waiting_request_is_served() -> None:
    """The service manager's own tool as the judge, where it is installed."""
    tool = trio.Path("/usr/bin/systemd-socket-activate")
    if not await tool.exists():
        pytest.skip("systemd-socket-activate is not installed")
    with bind_tcp("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    code = (
        "import os, trio\nfrom stretto.serving import adopt_listen_fds, Limits\nfrom stretto.serving.server import serve\n"
        "socks = adopt_listen_fds(os.environ)['http']\n"
        "async def app(scope, receive, send):\n"
        "    await send({'type': 'http.response.start', 'status': 204, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': b''})\n"
        "    stopping.set()\n"
        "stopping = trio.Event()\n"
        "async def main():\n"
        "    await serve(app, socks, Limits(), stopping=stopping)\n"
        "trio.run(main)\n"
    )
    command = [str(tool), "--fdname=http", f"--listen=127.0.0.1:{port}", sys.executable, "-c", code]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        with trio.fail_after(90):
            said = b""
            while b"Listening" not in said:
                said += await process.stderr.receive_some()
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(get())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 204")
            await stream.aclose()
            while await process.stderr.receive_some():
                pass
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stderr is not None
        await process.stderr.aclose()
