"""Models of a Hugging Face hub: the repository's files are listed once, pinned to their commit, and fetched one by one.

The endpoint, the token and the offline switch are those of ``huggingface_hub``, so its settings hold here too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx2
from huggingface_hub import constants, get_token

from stretto.errors import SettingsError, StartupError
from stretto.weights.download import Digest, Download, Downloader, TransferRefused, open_client, public_url
from stretto.weights.durable import require_space
from stretto.weights.fetched import Fetched
from stretto.weights.hub_files import HubFile, choose_files, shards_of
from stretto.weights.manifest import InstalledFile
from stretto.weights.progress import ProgressMeter
from stretto.weights.reference import HubReference, check_member_path

__all__ = ["HubSource"]

_LISTING_TRIES = 4
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SHA1 = _COMMIT
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class _Repository:
    commit: str
    files: tuple[HubFile, ...]
    licence: str | None


class HubSource:
    """Fetches what a :class:`HubReference` names.

    Args:
        endpoint: base URL of the hub; None: ``huggingface_hub``'s own (``HF_ENDPOINT``).
        token: access token; None: the one the user is logged in with, if any.
        offline: refuse to use the network; None: ``HF_HUB_OFFLINE`` decides.
        sleep: waits between tries.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        offline: bool | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = (endpoint if endpoint is not None else constants.ENDPOINT).rstrip("/")
        self._token = token
        self._offline = offline if offline is not None else constants.HF_HUB_OFFLINE
        self._sleep = sleep

    def fetch(self, reference: HubReference, directory: Path, scratch: Path, meter: ProgressMeter) -> Fetched:
        """Bring the reference's files into ``directory``. See :class:`stretto.weights.fetched.Source`."""
        if self._offline:
            raise StartupError(
                f"{reference.text} is not in the library, and HF_HUB_OFFLINE forbids to fetch it.",
                code="download_failed",
                remedy="Unset HF_HUB_OFFLINE and pull it once; after that no network is needed.",
            )
        meter.begin("resolving")
        token = self._token if self._token is not None else get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with open_client() as client:
            repository = self._list(client, reference, headers)
            choice = choose_files(reference, repository.files)
            transfer = _Transfer(
                Downloader(client, sleep=self._sleep),
                f"{self._endpoint}/{reference.repo_id}/resolve/{repository.commit}",
                *(headers, directory, scratch, meter),
            )
            wanted = choice.files
            if choice.index is not None:
                transfer.bring([choice.index])
                index = (directory / choice.index.path).read_bytes()
                wanted += shards_of(reference, repository.files, index)
            try:
                files = transfer.bring(wanted)
            except TransferRefused as refused:
                raise _explain_refusal(reference, refused, bool(token)) from refused
        return Fetched(files, choice.main, repository.licence, repository.commit)

    def _list(
        self, client: httpx2.Client, reference: HubReference, headers: Mapping[str, str]
    ) -> _Repository:
        revision = quote(reference.revision or "main", safe="")
        url = f"{self._endpoint}/api/models/{reference.repo_id}/revision/{revision}?blobs=true"
        why = ""
        for attempt in range(_LISTING_TRIES):
            if attempt:
                self._sleep(0.5 * 2 ** (attempt - 1))
            try:
                response = client.get(url, headers=dict(headers))
            except httpx2.TransportError as error:
                why = f"{type(error).__name__}: {error}"
                continue
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise _unlisted(reference, url, f"{type(error).__name__}: {error}") from error
            if response.status_code == 200:
                return _parse_listing(reference, url, response)
            why = f"the server answers {response.status_code} {response.reason_phrase}".rstrip()
            if response.status_code < 500 and response.status_code != 429:
                raise _explain_status(reference, url, response, why)
        raise _unlisted(reference, url, f"{why}; given up after {_LISTING_TRIES} tries")


@dataclass(frozen=True)
class _Transfer:
    """Files of one commit on their way into one directory."""

    downloader: Downloader
    base_url: str
    headers: Mapping[str, str]
    directory: Path
    scratch: Path
    meter: ProgressMeter

    def bring(self, files: Sequence[HubFile]) -> tuple[InstalledFile, ...]:
        total_bytes = sum(file.size_bytes for file in files)
        require_space(self.directory, total_bytes - self._here_bytes(files))
        self.meter.begin("downloading", total_bytes)
        brought: list[InstalledFile] = []
        for file in files:
            before_bytes = sum(one.size_bytes for one in brought)

            def on_bytes(done_bytes: int, _: int | None, before_bytes: int = before_bytes) -> None:
                self.meter.at(before_bytes + done_bytes)

            url = f"{self.base_url}/{quote(file.path)}"
            item = Download(url, file.path, file.size_bytes, file.digest, self.headers)
            brought.append(self.downloader.fetch(item, self.directory / file.path, self.scratch, on_bytes))
        return tuple(brought)

    def _here_bytes(self, files: Sequence[HubFile]) -> int:
        """Bytes of these files that lie on the disk already, whole or in part."""
        whole = [self.directory / file.path for file in files]
        return sum(path.stat().st_size for path in [*whole, *self.scratch.glob("*.part")] if path.is_file())


def _parse_listing(reference: HubReference, url: str, response: httpx2.Response) -> _Repository:
    try:
        document = response.json()
        commit = str(document["sha"])
        if not _COMMIT.match(commit):
            raise ValueError(f"the commit {commit!r}")
        files = tuple(_parse_files(reference, document["siblings"]))
        card = document.get("cardData") or {}
        licence = card.get("license") if isinstance(card, dict) else None
    except (ValueError, KeyError, TypeError) as error:
        raise _unlisted(reference, url, f"its answer is malformed ({error!r})") from error
    return _Repository(commit, files, licence if isinstance(licence, str) else None)


def _parse_files(reference: HubReference, siblings: Sequence[Mapping[str, object]]) -> Iterator[HubFile]:
    for sibling in siblings:
        path, size_bytes, lfs = sibling["rfilename"], sibling["size"], sibling.get("lfs")
        if not isinstance(path, str) or not isinstance(size_bytes, int):
            raise TypeError("a file without name or size")
        try:
            check_member_path(path, whole=reference.text)
        except SettingsError as error:
            raise StartupError(error.message, code="model_invalid") from error
        if isinstance(lfs, dict):
            sha256 = str(lfs["sha256"])
            if not _SHA256.match(sha256):
                raise ValueError(f"the SHA-256 of {path}")
            yield HubFile(path, size_bytes, Digest("sha256", sha256))
        else:
            sha1 = str(sibling["blobId"])
            if not _SHA1.match(sha1):
                raise ValueError(f"the blob id of {path}")
            yield HubFile(path, size_bytes, Digest("git-blob-sha1", sha1))


def _explain_status(reference: HubReference, url: str, response: httpx2.Response, why: str) -> StartupError:
    """Tell apart what the hub's status and its ``X-Error-Code`` header mean."""
    code = response.headers.get("x-error-code", "")
    if code == "RevisionNotFound":
        return StartupError(
            f"{reference.repo_id} has no revision {reference.revision or 'main'!r}.", code="model_not_found"
        )
    if code == "GatedRepo" or response.status_code == 403:
        return StartupError(
            f"{reference.repo_id} is gated: {why}.",
            code="download_failed",
            remedy="Accept its terms on the hub's page, then give a token that may read it (`hf auth login`, or HF_TOKEN).",
        )
    if code == "RepoNotFound" or response.status_code in (401, 404):
        return StartupError(
            f"The hub shows no model repository {reference.repo_id}: {why}.",
            code="model_not_found",
            remedy="Check the spelling; a private one needs a token that may read it (`hf auth login`, or HF_TOKEN).",
        )
    return _unlisted(reference, url, why)


def _explain_refusal(reference: HubReference, refused: TransferRefused, has_token: bool) -> StartupError:
    if refused.http_status not in (401, 403):
        return refused
    asked = "The token that was sent may not read it" if has_token else "No token is set"
    return StartupError(
        refused.message,
        code="download_failed",
        remedy=f"{asked}: accept the terms of {reference.repo_id} on the hub's page, then `hf auth login` or set HF_TOKEN.",
    )


def _unlisted(reference: HubReference, url: str, why: str) -> StartupError:
    return StartupError(
        f"The files of {reference.text} cannot be listed from {public_url(url)}: {why}.",
        code="download_failed",
        remedy="Check the network and HF_ENDPOINT, or name the path of a model that is on this machine.",
    )
