"""Models of a hub, from a server that speaks its protocol on the loopback."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.errors import StartupError
from stretto.weights.fetched import Fetched
from stretto.weights.hub import HubSource
from stretto.weights.progress import ProgressMeter, no_progress
from stretto.weights.reference import HubReference
from support.pull_server import FileServer, Page, direct_network, file_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = random.Random(4).randbytes(400_000)
SMALL = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "README.md": b"read me"}


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """One repository, ``o/r``, on a server; large files sit on another host, as they do on the real one."""

    def __init__(self, server: FileServer, cdn: FileServer, root: Path) -> None:
        self.server, self.cdn = server, cdn
        self.directory = root / "model"
        self.scratch = self.directory / ".pull"
        self.scratch.mkdir(parents=True)
        self.siblings: list[dict[str, object]] = []
        self.listing = Page()
        server.add("/api/models/o/r/revision/main", self.listing)

    def hold(self, files: dict[str, bytes]) -> None:
        for path, data in files.items():
            sibling: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git_blob(data)}
            if path.endswith((".safetensors", ".gguf")):
                sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
                far = self.cdn.add(f"/blob/{path}", Page(data, '"x"'))
                self.server.add(f"/o/r/resolve/{COMMIT}/{path}", Page(status=302, headers={"Location": far}))
            else:
                self.server.add(f"/o/r/resolve/{COMMIT}/{path}", Page(data, f'"{git_blob(data)}"'))
            self.siblings.append(sibling)
        document = {"sha": COMMIT, "siblings": self.siblings, "cardData": {"license": "apache-2.0"}}
        self.listing.data = json.dumps(document).encode()

    def fetch(
        self, reference: HubReference | None = None, *, token: str = "", offline: bool = False
    ) -> Fetched:
        source = HubSource(endpoint=self.server.url + "/", token=token, offline=offline, sleep=lambda _: None)
        meter = ProgressMeter(no_progress)
        return source.fetch(reference or HubReference("o", "r"), self.directory, self.scratch, meter)

    def refuse(
        self, reference: HubReference | None = None, *, token: str = "", offline: bool = False
    ) -> StartupError:
        with pytest.raises(StartupError) as caught:
            self.fetch(reference, token=token, offline=offline)
        return caught.value

    def asked(self, path: str) -> list[dict[str, str]]:
        return [seen.headers for seen in [*self.server.seen, *self.cdn.seen] if seen.path == path]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with direct_network(tmp_path), file_server() as server, file_server() as cdn:
        yield Hub(server, cdn, tmp_path)


def test_a_checkpoint(hub: Hub) -> None:
    extra = {
        "onnx/model.onnx": b"x",
        "pytorch_model.bin": b"x",
        "chat_template.jinja": b"{{ x }}",
        "tokenizer.model": b"m",
    }
    hub.hold({**SMALL, **extra, "model.safetensors": WEIGHTS})
    fetched = hub.fetch()
    assert (fetched.main, fetched.licence, fetched.revision) == (".", "apache-2.0", COMMIT)
    kept = sorted(
        ["config.json", "tokenizer.json", "chat_template.jinja", "tokenizer.model", "model.safetensors"]
    )
    assert sorted(file.path for file in fetched.files) == kept
    assert sorted(path.name for path in hub.directory.iterdir() if path.is_file()) == kept
    for file in fetched.files:
        assert hashlib.sha256((hub.directory / file.path).read_bytes()).hexdigest() == file.sha256


def test_sharded_weights_are_exactly_those_of_the_index(hub: Hub) -> None:
    index = {
        "metadata": {},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"},
    }
    shards = {
        "model-1.safetensors": WEIGHTS,
        "model-2.safetensors": WEIGHTS[::-1],
        "consolidated.safetensors": b"other",
    }
    hub.hold({**SMALL, **shards, "model.safetensors.index.json": json.dumps(index).encode()})
    names = {file.path for file in hub.fetch().files}
    assert names == {
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-1.safetensors",
        "model-2.safetensors",
    }
    assert len(hub.asked(f"/o/r/resolve/{COMMIT}/model.safetensors.index.json")) == 1


@pytest.mark.parametrize(
    "index",
    [b"{", b"[]", b'{"weight_map": {}}', b'{"weight_map": {"a": "gone.safetensors"}}', b'{"weight_map": 3}'],
)
def test_a_broken_index(hub: Hub, index: bytes) -> None:
    hub.hold({**SMALL, "model-1.safetensors": WEIGHTS, "model.safetensors.index.json": index})
    assert hub.refuse().code == "model_invalid"


def test_one_gguf_among_several(hub: Hub) -> None:
    hub.hold({"x-Q4.gguf": WEIGHTS, "sub/x-Q8.gguf": WEIGHTS[::-1], "README.md": b""})
    error = hub.refuse()
    assert error.code == "model_not_found"
    assert error.remedy == "Write hf:o/r!FILE with one of: sub/x-Q8.gguf, x-Q4.gguf."
    fetched = hub.fetch(HubReference("o", "r", None, "sub/x-Q8.gguf"))
    assert fetched.main == "sub/x-Q8.gguf"
    assert (hub.directory / fetched.main).read_bytes() == WEIGHTS[::-1]
    assert "x-Q4" in str(hub.refuse(HubReference("o", "r", None, "nope.gguf")))


def test_the_only_gguf_needs_no_name(hub: Hub) -> None:
    hub.hold({"x.gguf": WEIGHTS})
    assert hub.fetch().main == "x.gguf"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "model_unsupported"),
        ({"README.md": b"x"}, "model_not_found"),
        ({"adapter_model.safetensors": b"x"}, "model_not_found"),
        ({"config.json": b"{}", "a.safetensors": b"x", "b.safetensors": b"y"}, "model_not_found"),
        ({"x-00001-of-00002.gguf": b"x"}, "model_unsupported"),
    ],
)
def test_repositories_without_a_model(hub: Hub, files: dict[str, bytes], code: str) -> None:
    hub.hold(files)
    assert hub.refuse().code == code
    assert hub.cdn.seen == []


def test_a_broken_transfer_goes_on_and_whole_files_are_kept(hub: Hub) -> None:
    hub.hold({**SMALL, "model.safetensors": WEIGHTS})
    hub.cdn.pages["/blob/model.safetensors"].drops = [100_000] + [0] * 20
    assert hub.refuse().code == "download_failed"
    hub.cdn.pages["/blob/model.safetensors"].drops.clear()
    hub.fetch()
    assert hub.cdn.sent_bytes("/blob/model.safetensors") == len(WEIGHTS)
    assert len(hub.asked(f"/o/r/resolve/{COMMIT}/config.json")) == 1


def test_wrong_bytes_are_refused_large_and_small(hub: Hub) -> None:
    hub.hold({**SMALL, "model.safetensors": WEIGHTS})
    hub.cdn.pages["/blob/model.safetensors"].data = WEIGHTS[::-1]
    assert hub.refuse().code == "checksum_mismatch"
    hub.cdn.pages["/blob/model.safetensors"].data = WEIGHTS
    hub.directory.joinpath("config.json").unlink()
    hub.server.pages[f"/o/r/resolve/{COMMIT}/config.json"].data = b'{"model_type": "evil!"}'
    error = hub.refuse()
    assert error.code == "checksum_mismatch"
    assert "config.json" in error.message


def test_a_lie_about_the_size(hub: Hub) -> None:
    hub.hold({**SMALL, "model.safetensors": WEIGHTS})
    hub.cdn.pages["/blob/model.safetensors"].data = WEIGHTS + b"more"
    error = hub.refuse()
    assert f"{len(WEIGHTS) + 4:,}" in error.message


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub) -> None:
    hub.hold({**SMALL, "model.safetensors": WEIGHTS})
    hub.listing.token = "hf_secret"
    hub.fetch(token="hf_secret")
    assert {seen.headers.get("authorization") for seen in hub.server.seen} == {"Bearer hf_secret"}
    assert {seen.headers.get("authorization") for seen in hub.cdn.seen} == {None}


@pytest.mark.parametrize(
    ("status", "header", "code", "words"),
    [
        (401, "RepoNotFound", "model_not_found", "HF_TOKEN"),
        (404, "", "model_not_found", "Check the spelling"),
        (404, "RevisionNotFound", "model_not_found", "has no revision 'main'"),
        (403, "GatedRepo", "download_failed", "Accept its terms"),
        (400, "", "download_failed", "400"),
        (503, "", "download_failed", "given up"),
    ],
)
def test_what_the_hub_says_no_to(hub: Hub, status: int, header: str, code: str, words: str) -> None:
    hub.listing.status, hub.listing.headers = status, {"X-Error-Code": header}
    error = hub.refuse()
    assert error.code == code
    assert words in str(error)


def test_a_gated_file_of_a_listed_repository(hub: Hub) -> None:
    hub.hold({"x.gguf": WEIGHTS})
    hub.server.pages[f"/o/r/resolve/{COMMIT}/x.gguf"] = Page(status=401)
    assert "No token is set" in str(hub.refuse())
    assert "The token that was sent may not read it" in str(hub.refuse(token="hf_x"))


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b'{"sha": "main", "siblings": []}',
        b'{"sha": "%s", "siblings": [{"rfilename": 3}]}' % COMMIT.encode(),
    ],
)
def test_a_malformed_listing(hub: Hub, document: bytes) -> None:
    hub.listing.data = document
    assert "malformed" in hub.refuse().message


def test_a_listing_with_a_path_that_leaves_the_directory(hub: Hub) -> None:
    hub.hold({"../../x.gguf": WEIGHTS})
    assert hub.refuse().code == "model_invalid"


def test_a_moment_of_trouble_in_the_listing(hub: Hub) -> None:
    hub.hold({"x.gguf": WEIGHTS})
    hub.listing.failures = [500, 429]
    assert hub.fetch().main == "x.gguf"


def test_a_revision_is_quoted(hub: Hub) -> None:
    hub.hold({"x.gguf": WEIGHTS})
    hub.server.add("/api/models/o/r/revision/refs/pr/1", hub.listing)
    hub.fetch(HubReference("o", "r", "refs/pr/1"))


def test_offline(hub: Hub) -> None:
    error = hub.refuse(offline=True)
    assert "HF_HUB_OFFLINE" in error.message
    assert hub.server.seen == []


def test_the_environment_of_huggingface_hub_is_followed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.hold({"x.gguf": WEIGHTS})
    monkeypatch.setattr(constants, "ENDPOINT", hub.server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    HubSource().fetch(HubReference("o", "r"), hub.directory, hub.scratch, ProgressMeter(no_progress))
    assert hub.server.seen[0].headers["authorization"] == "Bearer hf_env"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StartupError, match="HF_HUB_OFFLINE"):
        HubSource().fetch(HubReference("o", "r"), hub.directory, hub.scratch, ProgressMeter(no_progress))
