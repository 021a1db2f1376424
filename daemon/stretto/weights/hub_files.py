"""Which files of a hub repository make up a model. Pure: listings in, choices out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stretto.errors import StartupError
from stretto.weights.download import Digest
from stretto.weights.reference import HubReference

__all__ = ["Choice", "HubFile", "choose_files", "shards_of"]

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_COMPANIONS = (
    *("config.json", "generation_config.json", "tokenizer*", "chat_template*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "LICENSE*"),
)
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf\Z", re.IGNORECASE)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository at one commit."""

    path: str
    size_bytes: int
    digest: Digest


@dataclass(frozen=True)
class Choice:
    """What to fetch.

    Attributes:
        main: the GGUF file's path, or "." for a checkpoint directory.
        files: what is certain already.
        index: the one of them that lists the weight files still to be added (:func:`shards_of`), or None.
    """

    main: str
    files: tuple[HubFile, ...]
    index: HubFile | None = None


def choose_files(reference: HubReference, listing: Sequence[HubFile]) -> Choice:
    """Choose the named file, or the safetensors checkpoint at the top of the repository, or its only GGUF file.

    Raises:
        StartupError: ``model_not_found`` (nothing fits, or several GGUF files do), ``model_unsupported``.
    """
    by_path = {file.path: file for file in listing}
    ggufs = sorted(path for path in by_path if path.lower().endswith(".gguf"))
    if reference.file is not None:
        if reference.file not in by_path:
            raise _nothing(reference, f"holds no {reference.file!r}", _offer(reference, ggufs))
        return _one_gguf(reference, by_path[reference.file])
    top = [file for file in listing if "/" not in file.path]
    weights = [file for file in top if file.path.endswith(".safetensors")]
    if not weights:
        if len(ggufs) == 1:
            return _one_gguf(reference, by_path[ggufs[0]])
        if ggufs:
            raise _nothing(
                reference, f"holds {len(ggufs)} GGUF files, and one must be chosen", _offer(reference, ggufs)
            )
        if any(file.path.endswith((".bin", ".pt", ".pth")) for file in top):
            raise StartupError(
                f"{reference.text} holds its weights only as pickles, which can run code when they are read.",
                code="model_unsupported",
                remedy="Choose a repository, or a revision, with .safetensors or .gguf files.",
            )
        raise _nothing(reference, "holds neither .safetensors nor .gguf files", None)
    if "config.json" not in by_path:
        raise _nothing(
            reference, "holds weights but no config.json", "It may be an adapter, which is no whole model."
        )
    companions = [file for file in top if any(fnmatchcase(file.path, pattern) for pattern in _COMPANIONS)]
    if _INDEX in by_path:
        index = by_path[_INDEX]
        return Choice(".", (index, *companions), index)
    if _WHOLE in by_path:
        weights = [by_path[_WHOLE]]
    elif len(weights) > 1:
        raise _nothing(
            reference,
            f"holds {len(weights)} weight files and no {_INDEX} that says which belong together",
            None,
        )
    return Choice(".", (*companions, *weights))


def shards_of(reference: HubReference, listing: Sequence[HubFile], index: bytes) -> tuple[HubFile, ...]:
    """The weight files that a checkpoint's index names.

    Raises:
        StartupError: ``model_invalid``: the index is malformed, or names a file that the repository does not hold.
    """
    by_path = {file.path: file for file in listing}
    try:
        names = sorted({str(name) for name in json.loads(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(
            f"The {_INDEX} of {reference.text} is malformed: {error!r}.", code="model_invalid"
        ) from error
    missing = [name for name in names if name not in by_path]
    if missing or not names:
        what = f"{missing[0]!r}, which the repository does not hold" if missing else "no file at all"
        raise StartupError(f"The {_INDEX} of {reference.text} names {what}.", code="model_invalid")
    return tuple(by_path[name] for name in names)


def _one_gguf(reference: HubReference, file: HubFile) -> Choice:
    if not file.path.lower().endswith(".gguf"):
        raise StartupError(
            f"{reference.text} names {file.path!r}; only a .gguf file can stand after '!'.",
            code="model_unsupported",
        )
    if _SPLIT_GGUF.search(file.path):
        raise StartupError(
            f"{file.path} of {reference.text} is one piece of a split GGUF file.",
            code="model_unsupported",
            remedy="Choose a file that is whole, or join the pieces and name the path of the result.",
        )
    return Choice(file.path, (file,))


def _offer(reference: HubReference, ggufs: Sequence[str]) -> str | None:
    if not ggufs:
        return None
    shown = ", ".join(ggufs[:20]) + (", …" if len(ggufs) > 20 else "")
    base = HubReference(reference.owner, reference.repo, reference.revision).text
    return f"Write {base}!FILE with one of: {shown}."


def _nothing(reference: HubReference, what: str, remedy: str | None) -> StartupError:
    return StartupError(f"The repository of {reference.text} {what}.", code="model_not_found", remedy=remedy)
