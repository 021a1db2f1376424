"""One file over HTTP: resumed by ranges, retried with back-off, hashed, and put in place only when it is right.

A transfer that stops, for whatever reason, leaves ``NAME.part`` and ``NAME.part.json`` (the validators of RFC 9110)
in the scratch directory; the next one asks for the rest with ``Range`` and ``If-Range``, so that bytes of two
different versions of a file are never joined.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from stretto._version import __version__
from stretto.errors import StartupError
from stretto.weights.durable import move_into_place, require_space
from stretto.weights.manifest import InstalledFile
from stretto.weights.partial import (
    Digest,
    Download,
    Hashes,
    OnBytes,
    Validators,
    discard,
    read_through,
    read_validators,
    size_of,
    validators_file,
    write_validators,
)

__all__ = ["Digest", "Download", "Downloader", "TransferRefused", "open_client", "public_url"]

_TRIES = 6  # failures in a row, without the file growing, before giving up
_GROWN_BYTES = 1 << 20  # so much more makes a failure count as the first again
_ALL_TRIES = 200
_LONGEST_WAIT_S = 60.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({401, 403, 404, 407, 410})  # 404: what some servers say to whom they do not know
_KEPT = "What has arrived is kept: pull again to go on from there."
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")


class TransferRefused(StartupError):
    """The server does not give the file to us, or is not trusted: another way to it may still exist."""

    code = "download_failed"

    def __init__(self, message: str, *, http_status: int | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.http_status = http_status


class _Broken(Exception):
    """The transfer stopped early; what has arrived is on disk."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


def open_client(*, ca_bundle: Path | None = None, proxy: str | None = None) -> httpx2.Client:
    """An HTTP client for large files. Without arguments the environment decides (proxies, ``SSL_CERT_FILE``, …).

    Raises:
        StartupError: ``download_failed``: the certificate bundle cannot be read.
    """
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    bundle = ca_bundle or (Path(named) if named else None)
    if bundle is None:
        context = httpx2.create_ssl_context()
    else:
        try:
            if bundle.is_dir():
                context = ssl.create_default_context(capath=bundle)
            else:
                context = ssl.create_default_context(cafile=bundle)
        except (OSError, ssl.SSLError) as error:
            raise StartupError(
                f"The certificate bundle {bundle} cannot be read: {error}.",
                code="download_failed",
                remedy="Correct pip's `cert` setting, or REQUESTS_CA_BUNDLE / CURL_CA_BUNDLE.",
            ) from error
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        return httpx2.Client(
            verify=context,
            proxy=proxy,
            follow_redirects=True,
            timeout=httpx2.Timeout(60.0, connect=20.0),
            headers={"User-Agent": f"stretto/{__version__}", "Accept-Encoding": "identity"},
        )
    except (ValueError, httpx2.InvalidURL) as error:
        raise StartupError(
            f"The proxy setting cannot be used: {error}.",
            code="download_failed",
            remedy="Correct HTTPS_PROXY / HTTP_PROXY / ALL_PROXY, or pip's `proxy` setting.",
        ) from error


def public_url(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


class Downloader:
    """Gets files through one HTTP client.

    Args:
        client: who owns it closes it.
        sleep: waits between tries; tests pass their own.
    """

    def __init__(self, client: httpx2.Client, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep

    def fetch(self, item: Download, target: Path, scratch: Path, on_bytes: OnBytes) -> InstalledFile:
        """Bring ``item`` to ``target``; a ``target`` that is already right is kept and nothing is transferred.

        Args:
            scratch: directory of the partial file, on the file system of ``target``.
            on_bytes: told as the file grows; an exception it raises stops the transfer, which can be resumed.

        Raises:
            TransferRefused: the server wants credentials, denies the file, or is not trusted.
            StartupError: ``download_failed`` or ``checksum_mismatch``.
        """
        if target.is_file():
            kept = self._keep(item, target, on_bytes)
            if kept is not None:
                return kept
            target.unlink()
        part = scratch / (item.label.replace("/", "--") + ".part")
        failures, grown_at_bytes, started_over = 0, 0, False
        for _ in range(_ALL_TRIES):
            try:
                hashes, size_bytes, resumed = self._attempt(item, part, on_bytes)
            except _Broken as broken:
                here_bytes = size_of(part)
                if here_bytes - grown_at_bytes >= _GROWN_BYTES:
                    failures = 0
                failures, grown_at_bytes = failures + 1, max(here_bytes, grown_at_bytes)
                if failures >= _TRIES:
                    raise _failed(item, f"{broken}; given up after {failures} tries", _KEPT) from broken
                wait_s = (
                    broken.retry_after_s if broken.retry_after_s is not None else 0.5 * 2 ** (failures - 1)
                )
                self._sleep(min(wait_s, _LONGEST_WAIT_S))
                continue
            if hashes.right:
                _sync(part)
                move_into_place(part, target)
                validators_file(part).unlink(missing_ok=True)
                return InstalledFile(item.label, size_bytes, hashes.sha256)
            discard(part)  # wrong bytes must never be resumed
            if not resumed or started_over:
                assert item.digest is not None
                raise StartupError(
                    f"{item.label} from {public_url(item.url)} has the {item.digest.algorithm} {hashes.found}, and "
                    f"{item.digest.hexadecimal} was expected.",
                    code="checksum_mismatch",
                    remedy="It was thrown away. Pull again; if this stays, the source or a proxy on the way alters the file.",
                )
            started_over = True
        raise _failed(item, f"the connection broke {_ALL_TRIES} times", _KEPT)

    def _keep(self, item: Download, target: Path, on_bytes: OnBytes) -> InstalledFile | None:
        size_bytes = size_of(target)
        if item.digest is None or item.size_bytes not in (None, size_bytes):
            return None
        hashes = Hashes(item)
        read_through(target, hashes, on_bytes)
        return InstalledFile(item.label, size_bytes, hashes.sha256) if hashes.right else None

    def _attempt(self, item: Download, part: Path, on_bytes: OnBytes) -> tuple[Hashes, int, bool]:
        """One request. Returns the hashes, the size, and whether bytes of an earlier transfer are in it."""
        validators = read_validators(part, item)
        if validators is None:
            discard(part)
        hashes = Hashes(item)
        offset_bytes = read_through(part, hashes, on_bytes) if validators is not None else 0
        known_bytes = item.size_bytes
        if known_bytes is None and validators is not None:
            known_bytes = validators.total_bytes
        if offset_bytes and known_bytes is not None and offset_bytes >= known_bytes:
            if offset_bytes == known_bytes:
                return hashes, offset_bytes, True
            discard(part)
            hashes, offset_bytes = Hashes(item), 0
        headers = {**item.headers, "Accept-Encoding": "identity"}
        if offset_bytes and validators is not None:
            headers["Range"] = f"bytes={offset_bytes}-"
            if validators.if_range is not None:
                headers["If-Range"] = validators.if_range
        try:
            with self._client.stream("GET", item.url, headers=headers) as response:
                return self._receive(item, part, response, hashes, offset_bytes, validators, on_bytes)
        except httpx2.TransportError as error:
            if _is_distrust(error):
                raise TransferRefused(
                    f"The certificate of {public_url(item.url)} is not trusted: {error}.",
                    remedy="Behind a company proxy, set SSL_CERT_FILE or pip's `cert` to its certificate bundle.",
                ) from error
            if isinstance(error, httpx2.UnsupportedProtocol):
                raise _failed(item, str(error)) from error
            raise _Broken(f"{type(error).__name__}: {error}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _failed(item, f"{type(error).__name__}: {error}") from error

    def _receive(
        self,
        item: Download,
        part: Path,
        response: httpx2.Response,
        hashes: Hashes,
        offset_bytes: int,
        before: Validators | None,
        on_bytes: OnBytes,
    ) -> tuple[Hashes, int, bool]:
        _check_status(item, part, response)
        total_bytes = _length(response.headers.get("content-length"))
        etag, date = response.headers.get("etag"), response.headers.get("last-modified")
        if response.status_code == 206:
            match = _CONTENT_RANGE.match(response.headers.get("content-range", ""))
            total_bytes = int(match[3]) if match is not None and match[3] != "*" else None
            changed = before is None or before.total_bytes != total_bytes or etag not in (None, before.etag)
            if match is None or int(match[1]) != offset_bytes or changed:
                discard(part)
                raise _Broken("the file has changed on the server since the first part of it was fetched")
        elif offset_bytes:
            hashes, offset_bytes = Hashes(item), 0  # the server answers with the whole file: start over
        if item.size_bytes is not None and total_bytes is not None and total_bytes != item.size_bytes:
            discard(part)
            raise _failed(
                item, f"the server offers {total_bytes:,} bytes, and {item.size_bytes:,} were expected"
            )
        limit_bytes = item.size_bytes if item.size_bytes is not None else total_bytes
        if limit_bytes is not None:
            require_space(part.parent, limit_bytes - offset_bytes)
        resumed = offset_bytes > 0
        if not resumed:
            part.write_bytes(b"")
            write_validators(part, item, Validators(etag, date, total_bytes))
        with part.open("ab", buffering=0) as file:
            # As they come from the network: a chunk size would hold bytes back, and lose them when the connection breaks.
            for chunk in response.iter_raw():
                if limit_bytes is not None and offset_bytes + len(chunk) > limit_bytes:
                    file.close()
                    discard(part)
                    raise _failed(item, f"the server sends more than the expected {limit_bytes:,} bytes")
                _write_all(file.fileno(), chunk)
                hashes.update(chunk)
                offset_bytes += len(chunk)
                on_bytes(offset_bytes, limit_bytes)
        if limit_bytes is not None and offset_bytes < limit_bytes:
            raise _Broken(f"the server sent {offset_bytes:,} of {limit_bytes:,} bytes")
        return hashes, offset_bytes, resumed


def _check_status(item: Download, part: Path, response: httpx2.Response) -> None:
    """Let a whole or a partial body pass; raise the fitting error for everything else."""
    status = response.status_code
    what = f"the server answers {status} {response.reason_phrase}".rstrip()
    if status in (200, 206):
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise _failed(item, f"the server sends it in the encoding {encoding!r}, which was not asked for")
        return
    if status == 416:
        discard(part)
        raise _Broken(what)
    if status in _TRANSIENT:
        raise _Broken(what, _length(response.headers.get("retry-after")))
    if status in _REFUSED:
        raise TransferRefused(
            f"{item.label} cannot be fetched from {public_url(item.url)}: {what}.", http_status=status
        )
    raise _failed(item, what)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _is_distrust(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _failed(item: Download, why: str, remedy: str | None = None) -> StartupError:
    what = f"{item.label} cannot be fetched from {public_url(item.url)}: {why}."
    return StartupError(what, code="download_failed", remedy=remedy)
