"""A directory as Hugging Face lays it out: config.json, safetensors, tokenizer.json or tokenizer.model, and what goes with them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

from stretto.weights.faults import invalid, unsupported
from stretto.weights.hf_pieces import PIECE_FILE, build_piece_tokenizer
from stretto.weights.hf_tokenizer import build_hf_tokenizer
from stretto.weights.jsonfile import read_bytes, read_object
from stretto.weights.safetensors import SafetensorsFile
from stretto.weights.source import ModelFiles
from stretto.weights.tokenizer import Tokenizer

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_SHARDS = 1024
_MAX_TEMPLATE_BYTES = 16 << 20


class HuggingFaceDirectory(ModelFiles):
    """What such directories have in common. Raises StartupError naming the file that is missing or broken.

    Attributes:
        config_values: contents of config.json.
        shards: the weight files, once ``_open_shards`` has run.
        shard_of: by tensor name, the weight file that holds it.
    """

    format = "hf"

    def __init__(self, path: Path) -> None:
        """Read everything but the weights."""
        self.path = path
        self.name = path.resolve().name
        self.shards: list[SafetensorsFile] = []
        self.shard_of: dict[str, SafetensorsFile] = {}
        config = read_object(path / "config.json")
        if config is None:
            raise invalid(path, "the directory has no config.json")
        self.config_values = config
        self._tokenizer_values = read_object(path / "tokenizer_config.json") or {}
        self._has_pieces_only = not (path / "tokenizer.json").is_file()
        if self._has_pieces_only and not (path / PIECE_FILE).is_file():
            raise unsupported(
                path,
                f"the directory has neither tokenizer.json nor {PIECE_FILE}",
                remedy="Save the tokenizer in its fast form (transformers' save_pretrained does).",
            )
        self.chat_template = _chat_template(path, self._tokenizer_values)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Rows of the embedding table; no token may lie beyond."""

    def _open_shards(self, *, packed: bool) -> None:
        """Open the weight files and read their headers; ``packed`` as for ``SafetensorsFile``."""
        path = self.path
        for shard in sorted(self._shard_names()):
            if not (path / shard).is_file():
                raise invalid(path, f"the file {shard} is missing")
            file = SafetensorsFile(path / shard, packed=packed)
            self.shards.append(file)
            for name in file.tensors:
                if name in self.shard_of:
                    raise invalid(
                        path, f"tensor {name} is in {shard} and in {self.shard_of[name].file.path.name}"
                    )
                self.shard_of[name] = file

    def _shard_names(self) -> set[str]:
        path = self.path
        if (path / _SINGLE).is_file():
            return {_SINGLE}
        index = read_object(path / _INDEX)
        if index is None:
            raise invalid(path, f"the directory has neither {_SINGLE} nor {_INDEX}")
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise invalid(path / _INDEX, "weight_map is missing or empty")
        names = set()
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise invalid(
                    path / _INDEX, f"weight_map puts {tensor} into {name!r}, not a file of this directory"
                )
            names.add(name)
        if len(names) > _MAX_SHARDS:
            raise invalid(path / _INDEX, f"weight_map names {len(names)} files (at most {_MAX_SHARDS})")
        return names

    @cached_property
    def fingerprint(self) -> str:
        """See ModelFiles."""
        digest = hashlib.sha256(b"hf")
        names = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        if self._has_pieces_only:
            names += [PIECE_FILE, "added_tokens.json"]
        for name in names:
            data = read_bytes(self.path / name, limit=1 << 28) or b""
            digest.update(hashlib.sha256(data).digest())
        digest.update(hashlib.sha256((self.chat_template or "").encode()).digest())
        for file in self.shards:
            digest.update(file.file.digest(file.header_end))
        return digest.hexdigest()

    def build_tokenizer(self) -> Tokenizer:
        """See ModelFiles."""
        build = build_piece_tokenizer if self._has_pieces_only else build_hf_tokenizer
        return build(
            self.path, self._tokenizer_values, _end_ids(self.path, self.config_values), self.vocab_size
        )

    def close(self) -> None:
        """See ModelFiles."""
        for file in self.shards:
            file.file.close()


def _end_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """``eos_token_id`` of generation_config.json, then of config.json; each is a number or a list of numbers."""
    found: list[int] = []
    generation = read_object(path / "generation_config.json") or {}
    for name, values in (("generation_config.json", generation), ("config.json", config)):
        listed = values.get("eos_token_id")
        for token in listed if isinstance(listed, list) else [listed]:
            if token is None:
                continue
            if type(token) is not int:
                raise invalid(path / name, f"eos_token_id has {token!r}, not a token id")
            if token not in found:
                found.append(token)
    return tuple(found)


def _chat_template(path: Path, tokenizer_values: dict[str, Any]) -> str | None:
    """The template: chat_template.jinja, else chat_template.json, else tokenizer_config.json (``default`` of several)."""
    jinja = read_bytes(path / "chat_template.jinja", limit=_MAX_TEMPLATE_BYTES)
    if jinja is not None:
        try:
            return jinja.decode()
        except UnicodeDecodeError as error:
            raise invalid(path / "chat_template.jinja", "is not UTF-8") from error
    name, template = "tokenizer_config.json", tokenizer_values.get("chat_template")
    alone = read_object(path / "chat_template.json")
    if alone is not None:
        name, template = "chat_template.json", alone.get("chat_template")
    if isinstance(template, list):
        by_name = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        if "default" not in by_name:
            raise invalid(path / name, "chat_template lists several templates, but none named default")
        template = by_name["default"]
    if template is None or isinstance(template, str):
        return template
    raise invalid(path / name, "chat_template is not a text")
