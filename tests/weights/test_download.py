"""Downloads against a server that misbehaves: nothing is lost, nothing is spliced, nothing wrong is kept."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from stretto.errors import StartupError
from stretto.weights.download import Downloader, TransferRefused, open_client, public_url
from stretto.weights.partial import Digest, Download
from support.pull_server import FileServer, Page, direct_network, file_server

OLD = random.Random(1).randbytes(3_000_000)
NEW = random.Random(2).randbytes(3_000_000)


def sha256(data: bytes) -> Digest:
    return Digest("sha256", hashlib.sha256(data).hexdigest())


class Bench:
    """A downloader with its server, its directories and its waits."""

    def __init__(self, client: httpx2.Client, server: FileServer, directory: Path) -> None:
        self.client = client
        self.server = server
        self.target = directory / "model.gguf"
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self.part = self.scratch / "model.gguf.part"
        self.waits_s: list[float] = []
        self.progress: list[tuple[int, int | None]] = []

    def fetch(self, item: Download) -> bytes:
        downloader = Downloader(self.client, sleep=self.waits_s.append)
        got = downloader.fetch(item, self.target, self.scratch, lambda *at: self.progress.append(at))
        data = self.target.read_bytes()
        assert got.size_bytes == len(data)
        assert got.sha256 == hashlib.sha256(data).hexdigest()
        assert list(self.scratch.iterdir()) == []
        return data

    def refuse(self, item: Download) -> StartupError:
        with pytest.raises(StartupError) as caught:
            self.fetch(item)
        assert not self.target.exists()
        return caught.value


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with direct_network(tmp_path_factory.mktemp("certificates")), open_client() as opened:
        yield opened


@pytest.fixture
def bench(client: httpx2.Client, tmp_path: Path) -> Iterator[Bench]:
    with file_server() as server:
        yield Bench(client, server, tmp_path)


def test_whole_file(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, '"1"'))
    assert bench.fetch(Download(url, "model.gguf", len(OLD), sha256(OLD))) == OLD
    assert bench.progress[-1] == (len(OLD), len(OLD))
    assert bench.waits_s == []


def test_dropped_connections_are_resumed_and_no_byte_comes_twice(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, '"1"', drops=[1_000_000, 700_000]))
    assert bench.fetch(Download(url, "model.gguf", digest=sha256(OLD))) == OLD
    assert bench.server.sent_bytes("/f") == len(OLD)
    assert [seen.headers.get("range") for seen in bench.server.seen] == [
        None,
        "bytes=1000000-",
        "bytes=1700000-",
    ]
    assert [seen.headers.get("if-range") for seen in bench.server.seen] == [None, '"1"', '"1"']
    assert len(bench.waits_s) == 2


def test_a_transfer_stopped_by_its_observer_goes_on_in_the_next_process(bench: Bench) -> None:
    item = Download(bench.server.add("/f", Page(OLD, '"1"')), "model.gguf", digest=sha256(OLD))

    class Stop(Exception):
        pass

    def stop(done_bytes: int, total_bytes: int | None) -> None:
        if done_bytes >= 1_000_000:
            raise Stop

    with pytest.raises(Stop):
        Downloader(bench.client).fetch(item, bench.target, bench.scratch, stop)
    kept_bytes = bench.part.stat().st_size
    assert kept_bytes >= 1_000_000
    assert bench.fetch(item) == OLD
    assert bench.server.seen[-1].body_bytes == len(OLD) - kept_bytes


def test_a_changed_etag_starts_over_and_never_splices(bench: Bench) -> None:
    page = Page(OLD, '"1"', drops=[1_000_000] + [0] * 20)
    item = Download(bench.server.add("/f", page), "model.gguf")  # no hash that could save us
    assert bench.refuse(item).code == "download_failed"
    assert bench.part.read_bytes() == OLD[:1_000_000]
    bench.server.add("/f", Page(NEW, '"2"'))
    assert bench.fetch(item) == NEW


def test_a_server_that_ignores_if_range_is_caught_by_its_etag(bench: Bench) -> None:
    item = Download(bench.server.add("/f", Page(OLD, '"1"', drops=[1_000_000] + [0] * 20)), "model.gguf")
    bench.refuse(item)
    size = len(NEW)
    lie = Page(
        NEW[1_000_000:], '"2"', status=206, headers={"Content-Range": f"bytes 1000000-{size - 1}/{size}"}
    )
    bench.server.add("/f", lie)
    # The first answer is a 206 of another version: thrown away; the next request has no Range, so a 206 to it is wrong too.
    error = bench.refuse(item)
    assert "changed on the server" in error.message
    assert not bench.part.exists()


def test_a_splice_that_nothing_showed_is_caught_by_the_hash_and_fetched_anew(bench: Bench) -> None:
    page = Page(OLD, drops=[1_000_000] + [0] * 20)  # no validators at all
    url = bench.server.add("/f", page)
    item = Download(url, "model.gguf", digest=sha256(NEW))
    bench.refuse(item)
    bench.server.add("/f", Page(NEW))
    assert bench.fetch(item) == NEW
    assert [seen.headers.get("range") for seen in bench.server.seen[-2:]] == ["bytes=1000000-", None]


def test_without_validators_and_hash_nothing_is_resumed(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, drops=[1_000_000]))
    assert bench.fetch(Download(url, "model.gguf")) == OLD
    assert [seen.headers.get("range") for seen in bench.server.seen] == [None, None]


def test_a_weak_etag_may_not_stand_in_if_range(bench: Bench) -> None:
    url = bench.server.add(
        "/f",
        Page(OLD, 'W/"1"', drops=[1_000_000], headers={"Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}),
    )
    assert bench.fetch(Download(url, "model.gguf", digest=sha256(OLD))) == OLD
    assert bench.server.seen[-1].headers["if-range"] == "Mon, 02 Nov 2026 10:00:00 GMT"


def test_a_server_without_ranges_costs_time_and_nothing_else(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, '"1"', ranges=False, drops=[1_000_000]))
    assert bench.fetch(Download(url, "model.gguf", digest=sha256(OLD))) == OLD
    assert bench.server.seen[-1].body_bytes == len(OLD)


def test_partial_bytes_of_another_file_are_not_taken(bench: Bench) -> None:
    bench.refuse(
        Download(
            bench.server.add("/a", Page(OLD, '"1"', drops=[1_000_000] + [0] * 20)),
            "model.gguf",
            digest=sha256(OLD),
        )
    )
    assert (
        bench.fetch(Download(bench.server.add("/b", Page(NEW, '"1"')), "model.gguf", digest=sha256(NEW)))
        == NEW
    )
    assert [seen.headers.get("range") for seen in bench.server.seen if seen.path == "/b"] == [None]


def test_the_same_file_goes_on_from_another_mirror(bench: Bench) -> None:
    bench.refuse(
        Download(
            bench.server.add("/a", Page(OLD, '"1"', drops=[1_000_000] + [0] * 20)),
            "model.gguf",
            digest=sha256(OLD),
        )
    )
    assert (
        bench.fetch(Download(bench.server.add("/b", Page(OLD, '"1"')), "model.gguf", digest=sha256(OLD)))
        == OLD
    )
    assert bench.server.seen[-1].headers["range"] == "bytes=1000000-"


def test_a_damaged_partial_file_is_caught_and_fetched_anew(bench: Bench) -> None:
    item = Download(
        bench.server.add("/f", Page(OLD, '"1"', drops=[1_000_000] + [0] * 20)),
        "model.gguf",
        digest=sha256(OLD),
    )
    bench.refuse(item)
    bench.part.write_bytes(b"x" + bench.part.read_bytes()[1:])
    bench.server.pages["/f"].drops.clear()
    assert bench.fetch(item) == OLD


def test_a_complete_partial_file_needs_no_request(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, '"1"', drops=[1_000_000] + [0] * 20))
    item = Download(url, "model.gguf", digest=sha256(OLD))
    bench.refuse(item)
    bench.part.write_bytes(OLD)
    asked = len(bench.server.seen)
    assert bench.fetch(item) == OLD
    assert len(bench.server.seen) == asked


def test_a_wrong_hash_is_refused_and_thrown_away(bench: Bench) -> None:
    error = bench.refuse(Download(bench.server.add("/f", Page(OLD, '"1"')), "model.gguf", digest=sha256(NEW)))
    assert error.code == "checksum_mismatch"
    assert sha256(OLD).hexadecimal in error.message
    assert sha256(NEW).hexadecimal in error.message
    assert not bench.part.exists()
    assert len(bench.server.seen) == 1


def test_git_blob_hash_as_git_computes_it(bench: Bench) -> None:
    # `printf 'hello\n' | git hash-object --stdin`
    url = bench.server.add("/f", Page(b"hello\n"))
    digest = Digest("git-blob-sha1", "ce013625030ba8dba906f756967f9e9ca394464a")
    assert bench.fetch(Download(url, "model.gguf", 6, digest)) == b"hello\n"
    bench.target.unlink()
    bench.server.add("/f", Page(b"hallo\n"))
    assert bench.refuse(Download(url, "model.gguf", 6, digest)).code == "checksum_mismatch"


@pytest.mark.parametrize("offered", [len(OLD) - 1, len(OLD) + 1])
def test_another_size_than_promised_is_refused_before_the_body(bench: Bench, offered: int) -> None:
    url = bench.server.add("/f", Page(OLD, claimed_bytes=offered))
    error = bench.refuse(Download(url, "model.gguf", len(OLD), sha256(OLD)))
    assert f"{offered:,}" in error.message
    assert f"{len(OLD):,}" in error.message
    assert len(bench.server.seen) == 1


def test_a_body_longer_than_promised_is_cut_off(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, chunked=True))
    error = bench.refuse(Download(url, "model.gguf", 1_000_000, sha256(OLD[:1_000_000])))
    assert "more than the expected 1,000,000 bytes" in error.message
    assert not bench.part.exists()


def test_a_body_of_unknown_length(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, chunked=True))
    assert bench.fetch(Download(url, "model.gguf", digest=sha256(OLD))) == OLD


def test_a_length_that_never_comes_is_given_up(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, '"1"', claimed_bytes=len(OLD) + 5))
    error = bench.refuse(Download(url, "model.gguf"))
    assert "given up" in error.message
    assert bench.waits_s == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_redirects_keep_the_range(bench: Bench) -> None:
    bench.server.add("/far", Page(OLD, '"1"', drops=[1_000_000]))
    url = bench.server.add("/near", Page(status=302, headers={"Location": "/far?sign=1"}))
    assert bench.fetch(Download(url, "model.gguf", digest=sha256(OLD))) == OLD
    assert bench.server.sent_bytes("/far") == len(OLD)


def test_a_token_does_not_follow_a_redirect_to_another_host(bench: Bench) -> None:
    with file_server() as other:
        far = other.add("/far", Page(OLD))
        url = bench.server.add("/near", Page(status=302, headers={"Location": far}))
        item = Download(url, "model.gguf", digest=sha256(OLD), headers={"Authorization": "Bearer secret"})
        assert bench.fetch(item) == OLD
        assert bench.server.seen[0].headers["authorization"] == "Bearer secret"
        assert "authorization" not in other.seen[0].headers


@pytest.mark.parametrize("status", [401, 403, 404, 407])
def test_refusals_are_told_apart(bench: Bench, status: int) -> None:
    error = bench.refuse(Download(bench.server.add("/f", Page(status=status)), "model.gguf"))
    assert isinstance(error, TransferRefused)
    assert error.http_status == status
    assert bench.waits_s == []


def test_an_overloaded_server_is_asked_again_when_it_says(bench: Bench) -> None:
    page = Page(OLD, '"1"', failures=[503, 429, 500], headers={"Retry-After": "7"})
    assert bench.fetch(Download(bench.server.add("/f", page), "model.gguf", digest=sha256(OLD))) == OLD
    assert bench.waits_s == [7, 7, 7]


def test_a_long_retry_after_is_bounded(bench: Bench) -> None:
    page = Page(OLD, failures=[503], headers={"Retry-After": "86400"})
    bench.fetch(Download(bench.server.add("/f", page), "model.gguf", digest=sha256(OLD)))
    assert bench.waits_s == [60]


def test_an_unasked_encoding_is_refused(bench: Bench) -> None:
    url = bench.server.add("/f", Page(OLD, headers={"Content-Encoding": "gzip"}))
    assert "gzip" in bench.refuse(Download(url, "model.gguf")).message


def test_nobody_listens(bench: Bench) -> None:
    with file_server() as gone:
        url = gone.url + "/f"
    assert bench.refuse(Download(url, "model.gguf")).code == "download_failed"
    assert len(bench.waits_s) == 5


def test_a_target_that_is_right_is_kept_without_a_request(bench: Bench) -> None:
    item = Download(bench.server.add("/f", Page(OLD)), "model.gguf", len(OLD), sha256(OLD))
    bench.target.write_bytes(OLD)
    assert bench.fetch(item) == OLD
    assert bench.server.seen == []
    bench.target.write_bytes(NEW)
    assert bench.fetch(item) == OLD


def test_a_full_disk_is_said_before_the_first_byte(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(bench.scratch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    error = bench.refuse(Download(bench.server.add("/f", Page(OLD)), "model.gguf", len(OLD)))
    assert "3,000,000 bytes are needed" in error.message
    assert error.remedy is not None


def test_shown_urls_hold_no_secrets() -> None:
    assert public_url("https://user:word@host.example:8443/a/b?sig=x#y") == "https://host.example:8443/a/b"
    item = Download("https://host.example/a?sig=secret", "a")
    assert "secret" not in item.identity
    assert item.identity != replace(item, url="https://host.example/b").identity


def test_an_unreadable_certificate_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.pem"):
        open_client(ca_bundle=tmp_path / "none.pem")


def test_an_impossible_proxy_is_said() -> None:
    with pytest.raises(StartupError, match="proxy"):
        open_client(proxy="gopher://x")
