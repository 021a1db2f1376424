"""Rules that one value alone cannot keep: pairs of settings, and what they find on this machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stretto.errors import SettingsError
from stretto.settings.places import SOCKET_PATH_BYTES
from stretto.settings.table import Settings

MAX_KEY_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: ``default``, ``file``, ``environment`` or ``flag``, and its name there."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return self.detail


Origins = Mapping[str, Origin]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``. A name other than localhost is taken as open."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse(name: str, origins: Origins, message: str, remedy: str | None = None) -> SettingsError:
    """An error that names the setting and where its value came from."""
    return SettingsError(f"{name} ({origins[name]}): {message}", param=name, remedy=remedy)


def read_key_file(settings: Settings, origins: Origins) -> Settings:
    """Put the key of ``api_key_file`` into ``api_key``.

    Raises:
        SettingsError: both are set, or the file is missing, unreadable, empty, or its first line is no key.
    """
    path = settings.api_key_file
    if path is None:
        return settings
    if settings.api_key is not None:
        raise refuse(
            "api_key_file",
            origins,
            f"cannot be set together with api_key ({origins['api_key']})",
            "Set one of them.",
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise refuse("api_key_file", origins, f"cannot read {path}: {error.strerror}") from None
    key, _, rest = data.partition(b"\n")
    key = key.rstrip(b"\r")
    if not 1 <= len(key) <= 512 or not all(0x21 <= byte <= 0x7E for byte in key) or rest.strip():
        raise refuse(
            "api_key_file",
            origins,
            f"{path} must hold one line of 1 to 512 visible ASCII characters without spaces",
        )
    return replace(settings, api_key=key.decode("ascii"))


def _keyless(settings: Settings) -> bool:
    """Whether who reaches the port needs no key."""
    return settings.api_key is None and settings.provider_config is None


def _open_host(settings: Settings, origins: Origins) -> None:
    if not is_loopback(settings.host) and _keyless(settings) and not settings.allow_open:
        raise refuse(
            "host",
            origins,
            f"{settings.host} can be reached from other machines, and no api_key is set",
            "Set STRETTO_API_KEY or --api-key-file, or say --allow-open.",
        )


def _open_origins(settings: Settings, origins: Origins) -> None:
    if "*" in settings.cors_origins and _keyless(settings) and not settings.allow_open:
        raise refuse(
            "cors_origins",
            origins,
            "* lets every web page that a user of this machine visits use the daemon, and no api_key is set",
            "Name the origins, set STRETTO_API_KEY or --api-key-file, or say --allow-open.",
        )


def _echo_only(settings: Settings, origins: Origins) -> None:
    if settings.echo and settings.backend != "echo":
        raise refuse(
            "echo",
            origins,
            f"has no effect with backend {settings.backend}",
            "Add --backend echo, or leave it out.",
        )
    if settings.backend == "echo" and settings.device not in ("auto", "cpu"):
        raise refuse(
            "device", origins, f"{settings.device} cannot be used with backend echo; it computes nothing"
        )


def _native_only(settings: Settings, origins: Origins) -> None:
    if settings.backend != "native":
        for name, default in (("activation_bits", "16"), ("kv_dtype", "auto"), ("prefill", "auto")):
            value = getattr(settings, name)
            if value != default and settings.backend != "auto":
                raise refuse(
                    name,
                    origins,
                    f"{value} has no effect with backend {settings.backend}",
                    "Add --backend native, or leave it out.",
                )
        return
    if settings.device not in ("auto", "cpu"):
        raise refuse(
            "device", origins, f"{settings.device} cannot be used with backend native; it computes on the CPU"
        )
    if settings.dtype != "auto":
        raise refuse(
            "dtype",
            origins,
            f"{settings.dtype} has no effect with backend native, which rounds as --activation-bits says",
            "Leave it out, or use --backend torch.",
        )


def _mlx_only(settings: Settings, origins: Origins) -> None:
    if settings.backend == "mlx" and settings.threads is not None:
        raise refuse(
            "threads",
            origins,
            f"{settings.threads} has no effect with backend mlx, which has threads of its own",
            "Leave it out.",
        )


def _offload(settings: Settings, origins: Origins) -> None:
    if settings.gpu_layers is not None and settings.offload == "none":
        raise refuse(
            "gpu_layers",
            origins,
            f"{settings.gpu_layers} has no effect without offload",
            "Add --offload cpu.",
        )
    if settings.offload != "none" and settings.backend not in ("auto", "torch"):
        raise refuse(
            "offload", origins, f"has no effect with backend {settings.backend}", "Use --backend torch."
        )


def _files(settings: Settings, origins: Origins) -> None:
    for name in ("chat_template", "provider_config"):
        path: Path | None = getattr(settings, name)
        if path is None:
            continue
        if not path.is_file():
            raise refuse(name, origins, f"there is no file {path}")
        if not os.access(path, os.R_OK):
            raise refuse(name, origins, f"{path} cannot be read")


def _one_kind_of_keys(settings: Settings, origins: Origins) -> None:
    if settings.provider_config is not None and settings.api_key is not None:
        other = "api_key" if settings.api_key_file is None else "api_key_file"
        raise refuse(
            "provider_config",
            origins,
            f"cannot be set together with {other} ({origins[other]}): the ledger's keys take its place",
            "Set one of them.",
        )


def _answer_fits(settings: Settings, origins: Origins) -> None:
    longest, context = settings.default_max_tokens, settings.max_context
    if longest is not None and context is not None and longest >= context:
        raise refuse(
            "default_max_tokens",
            origins,
            f"{longest} leaves no room for a prompt in max_context {context} ({origins['max_context']})",
        )


def _deadline_after_stall(settings: Settings, origins: Origins) -> None:
    if settings.step_deadline_s <= settings.stall_target_s:
        raise refuse(
            "step_deadline_s",
            origins,
            f"{settings.step_deadline_s:g} s must be longer than stall_target_ms "
            f"{settings.stall_target_ms:g} ({origins['stall_target_ms']})",
        )


def _directories(settings: Settings, origins: Origins) -> None:
    folders: dict[str, Path] = {
        "state_dir": settings.state_dir,
        "models_dir": settings.models_dir,
        "socket": settings.socket.parent,
    }
    for name, folder in folders.items():
        # The nearest ancestor that exists decides whether the folder can be made.
        existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
        if existing is not None and not existing.is_dir():
            raise refuse(name, origins, f"{existing} is not a directory")
    if len(os.fsencode(settings.socket)) > SOCKET_PATH_BYTES:
        raise refuse(
            "socket",
            origins,
            f"{settings.socket} is longer than the {SOCKET_PATH_BYTES} bytes that a socket's path may have here",
            "Name a shorter one with --socket or STRETTO_SOCKET.",
        )
    if settings.socket.is_dir():
        raise refuse("socket", origins, f"{settings.socket} is a directory")


def _cache_needs_embedder(settings: Settings, origins: Origins) -> None:
    if settings.semantic_cache == "on" and settings.embedder == "off":
        raise refuse(
            "semantic_cache",
            origins,
            "on compares questions by an embedding model, and embedder is off",
            "Leave --embedder out, or use --semantic-cache exact.",
        )


def _hybrid_recall(settings: Settings, origins: Origins) -> None:
    if settings.memory_recall == "hybrid" and not settings.memory:
        raise refuse("memory_recall", origins, "hybrid has no effect without memory", "Add --memory.")
    if settings.memory_recall == "hybrid" and settings.embedder == "off":
        raise refuse(
            "memory_recall",
            origins,
            "hybrid compares messages by an embedding model, and embedder is off",
            "Leave --embedder out, or use --memory-recall words.",
        )


RULES: tuple[Callable[[Settings, Origins], None], ...] = (
    _open_host,
    _open_origins,
    _echo_only,
    _native_only,
    _mlx_only,
    _offload,
    _files,
    _one_kind_of_keys,
    _cache_needs_embedder,
    _hybrid_recall,
    _answer_fits,
    _deadline_after_stall,
    _directories,
)


def check_rules(settings: Settings, origins: Origins) -> Settings:
    """Check everything that is not about one value; returns the settings with the key file read.

    Raises:
        SettingsError: names the setting, where it came from, and the remedy.
    """
    settings = read_key_file(settings, origins)
    for rule in RULES:
        rule(settings, origins)
    return settings


def warnings_of(settings: Settings) -> tuple[str, ...]:
    """What is allowed but worth saying at start."""
    found = []
    if _keyless(settings) and settings.allow_open:
        if not is_loopback(settings.host):
            found.append(
                f"listening on {settings.host} without an API key: whoever reaches it can use the model"
            )
        if "*" in settings.cors_origins:
            found.append("cors_origins is * without an API key: any web page can use the model")
    if settings.memory and _keyless(settings):
        found.append(
            "memory is on without an API key: whoever reaches the port can read, add to and clear every session"
        )
    for path in (settings.api_key_file, settings.provider_config):
        if path is None:
            continue
        try:
            mode = path.stat().st_mode
        except OSError:
            mode = 0
        if mode & 0o004:
            found.append(f"{path} can be read by every user of this machine (chmod 600 it)")
    return tuple(found)
