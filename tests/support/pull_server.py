"""A file server on the loopback that can misbehave: drops connections, ignores ranges, changes or lies about files."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class Page:
    """What one path answers."""

    data: bytes = b""
    etag: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    claimed_bytes: int | None = None  # a false Content-Length
    chunked: bool = False  # no Content-Length at all
    drops: list[int] = field(
        default_factory=list
    )  # one a request: bytes of the body to send before hanging up
    failures: list[int] = field(default_factory=list)  # one a request: a status to answer instead
    token: str | None = None  # demanded as a bearer token


@dataclass(frozen=True)
class Seen:
    path: str
    headers: dict[str, str]
    status: int
    body_bytes: int


class FileServer:
    """``pages`` maps paths (without query) to answers; ``seen`` lists what was asked and how much was sent."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.seen: list[Seen] = []
        self.url = ""

    def add(self, path: str, page: Page) -> str:
        self.pages[path] = page
        return self.url + path

    def sent_bytes(self, path: str) -> int:
        return sum(seen.body_bytes for seen in self.seen if seen.path == path)


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            page = server.pages.get(path, Page(status=404, data=b"no such page"))
            status, body, headers = _answer(page, dict(self.headers.items()))
            dropped = page.drops.pop(0) if page.drops and status in (200, 206) else None
            sent = body if dropped is None else body[:dropped]
            server.seen.append(Seen(path, {k.lower(): v for k, v in self.headers.items()}, status, len(sent)))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if page.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent)
            else:
                claimed = page.claimed_bytes if page.claimed_bytes is not None else len(body)
                self.send_header("Content-Length", str(claimed))
            try:
                self.end_headers()
                self.wfile.write(sent)
            except ConnectionError:  # the client has seen enough
                self.close_connection = True
            if dropped is not None or (page.claimed_bytes or 0) > len(body):
                self.close_connection = True

    return Handler


def _answer(page: Page, asked: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    headers = dict(page.headers)
    if page.etag is not None:
        headers["ETag"] = page.etag
    if page.failures:
        return page.failures.pop(0), b"not now", headers
    if page.token is not None and asked.get("Authorization") != f"Bearer {page.token}":
        return 401, b"who are you", headers
    match = re.fullmatch(r"bytes=(\d+)-", asked.get("Range", ""))
    fresh = asked.get("If-Range") in (None, page.etag)
    if page.status != 200 or match is None or not page.ranges or not fresh:
        return page.status, page.data, headers
    start, size = int(match[1]), len(page.data)
    if start >= size:
        return 416, b"", {**headers, "Content-Range": f"bytes */{size}"}
    return 206, page.data[start:], {**headers, "Content-Range": f"bytes {start}-{size - 1}/{size}"}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up early are what these tests are about; anything else is a fault of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def direct_network(directory: Path) -> Iterator[None]:
    """No proxy for the loopback, and no certificates (an empty directory of them): reading a bundle takes long."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            patch.delenv(name, raising=False)
        patch.setenv("REQUESTS_CA_BUNDLE", str(directory))
        yield


@contextmanager
def file_server() -> Iterator[FileServer]:
    files = FileServer()
    with _Server(("127.0.0.1", 0), _handler(files)) as server:
        files.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield files
        finally:
            server.shutdown()
            thread.join()
