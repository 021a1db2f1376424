"""Settings from their sources: defaults, then a TOML file, then the environment, then flags; the later wins."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from stretto.errors import SettingsError
from stretto.settings.declare import ENVIRONMENT_PREFIX, SettingField, TextList
from stretto.settings.places import APP
from stretto.settings.rules import Origin, check_rules, warnings_of
from stretto.settings.table import SETTING_FIELDS, Settings

CONFIG_ENV = ENVIRONMENT_PREFIX + "CONFIG"
MAX_CONFIG_BYTES = 1 << 20
_FOREIGN_PREFIXES = (ENVIRONMENT_PREFIX + "TEST_",)
_DEFAULT = Origin("default", "default")

FlagValue = str | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and where each came from.

    Attributes:
        settings: checked.
        origins: one for every setting.
        config_path: the TOML file that was read, or None.
        warnings: what is allowed but worth saying.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    config_path: Path | None
    warnings: tuple[str, ...]


def default_config_path() -> Path:
    """The TOML file that is read when none is named and it exists."""
    return platformdirs.user_config_path(APP) / "stretto.toml"


def load_settings(
    flags: Mapping[str, FlagValue] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    serving: bool = True,
) -> LoadedSettings:
    """Merge and check all sources.

    Args:
        flags: by setting name; None and () mean "not given".
        config: the TOML file; else ``STRETTO_CONFIG``, else the default path if it exists.
        environ: defaults to the process's environment.
        serving: whether the settings are to serve with. A client command uses a few of them only, so rules about pairs
            and files are left to the daemon; each single value is checked all the same.

    Raises:
        SettingsError: the first fault found, naming field, source, value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {field.name: field.make_default() for field in SETTING_FIELDS}
    origins: dict[str, Origin] = dict.fromkeys(values, _DEFAULT)
    path = _config_path(config, environ)
    for source in (
        _from_file(path) if path is not None else (),
        _from_environment(environ),
        _from_flags(flags or {}),
    ):
        for name, value, origin in source:
            values[name], origins[name] = value, origin
    settings = Settings(**values)
    if serving:
        settings = check_rules(settings, origins)
    return LoadedSettings(settings, origins, path, warnings_of(settings) if serving else ())


def _config_path(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    named: tuple[str, str] | None = None
    if config is not None:
        named = (str(config), "flag --config")
    elif CONFIG_ENV in environ:
        named = (environ[CONFIG_ENV], f"environment {CONFIG_ENV}")
    if named is not None:
        text, origin = named
        if not text:
            raise SettingsError(
                f"config ({origin}): must be the path of a TOML file, and is empty", param="config"
            )
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise SettingsError(f"config ({origin}): there is no file {path}", param="config")
        return path
    path = default_config_path()
    return path if path.is_file() else None


Rows = Iterable[tuple[str, object, Origin]]


def _from_file(path: Path) -> Rows:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"config: cannot read {path}: {error.strerror}", param="config") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise SettingsError(f"config: {path} is larger than {MAX_CONFIG_BYTES} bytes", param="config")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"config: {path} is not UTF-8 (byte {error.start})", param="config") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        detail = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "nested too deeply"
        raise SettingsError(f"config: {path} is not valid TOML: {detail}", param="config") from None
    by_name = {field.name: field for field in SETTING_FIELDS}
    for key, value in document.items():
        field = by_name.get(key)
        if field is None:
            raise SettingsError(
                f"{path}: unknown key {key!r}{_did_you_mean(key, by_name)}",
                param=key,
                remedy="`stretto serve --print-settings` lists the keys.",
            )
        yield (
            key,
            _read(field, value, Origin("file", f"{path}: {key}"), path.parent),
            Origin("file", f"{path}: {key}"),
        )


def _from_environment(environ: Mapping[str, str]) -> Rows:
    by_env = {field.env: field for field in SETTING_FIELDS}
    for name in sorted(environ):
        if (
            not name.startswith(ENVIRONMENT_PREFIX)
            or name == CONFIG_ENV
            or name.startswith(_FOREIGN_PREFIXES)
        ):
            continue
        field = by_env.get(name)
        if field is None:
            # The common prefix would make every name look near.
            bare = {env.removeprefix(ENVIRONMENT_PREFIX): env for env in by_env}
            near = _did_you_mean(name.removeprefix(ENVIRONMENT_PREFIX), bare, bare)
            raise SettingsError(
                f"unknown environment variable {name}{near}",
                param=name,
                remedy="Names that start with STRETTO_ are settings; `stretto serve --help` lists them.",
            )
        origin = Origin("environment", f"environment {name}")
        yield field.name, _read(field, environ[name], origin, None), origin


def _from_flags(flags: Mapping[str, FlagValue]) -> Rows:
    by_name = {field.name: field for field in SETTING_FIELDS}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        field = by_name[name]
        origin = Origin("flag", f"flag {field.flag}")
        yield name, _read(field, value, origin, None), origin


def _read(field: SettingField, value: object, origin: Origin, base: Path | None) -> object:
    """One value of one source; ``base`` is the folder of the TOML file, or None for text."""
    kind = field.spec.kind
    if field.spec.unset is not None and value == "none":
        return None
    try:
        if base is not None:
            return kind.from_toml(value, base)
        if isinstance(value, bool):
            return value
        if isinstance(value, tuple):
            assert isinstance(kind, TextList)
            return tuple(dict.fromkeys(item for text in value for item in kind.from_text(text)))
        assert isinstance(value, str)
        return kind.from_text(value)
    except ValueError:
        raise SettingsError(
            f"{field.name} ({origin}): must be {field.allowed}; it is {field.shown(value)}", param=field.name
        ) from None


def _did_you_mean(name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {shown[close[0]] if shown else close[0]}?" if close else ""
