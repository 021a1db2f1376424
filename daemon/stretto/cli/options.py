"""Command options that follow from the table of settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stretto.settings import SETTING_FIELDS, LoadedSettings, SettingField, load_settings
from stretto.settings.declare import Switch, TextList
from stretto.settings.render import flag_help


def setting_option(field: SettingField) -> click.Option:
    """The option of one setting. Values stay text here: reading and checking them is the settings' own business."""
    kind, text = field.spec.kind, flag_help(field)
    if isinstance(kind, Switch):
        negative = f"--no-{field.flag.removeprefix('--')}"
        return click.Option([f"{field.flag}/{negative}", field.name], default=None, help=text)
    return click.Option(
        [field.flag, field.name],
        type=str,
        multiple=isinstance(kind, TextList),
        metavar=kind.metavar,
        help=text,
    )


def config_option() -> click.Option:
    """``--config``."""
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="TOML file of settings.  [STRETTO_CONFIG; default: stretto.toml in the configuration directory, if there]",
    )


def with_settings(*names: str, serving: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of some settings (of all when none is named), and pass it ``loaded: LoadedSettings``.

    Every source is read and checked, whatever options the command has; with ``serving`` the rules between settings too.
    """
    fields = [field for field in SETTING_FIELDS if not names or field.name in names]

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        def wrapper(*args: Any, config: Path | None, **kwargs: Any) -> Any:
            flags = {field.name: kwargs.pop(field.name) for field in fields}
            loaded: LoadedSettings = load_settings(flags, config=config, serving=serving)
            return callback(*args, loaded=loaded, **kwargs)

        params: list[click.Parameter] = list(getattr(wrapper, "__click_params__", []))
        # click keeps a decorated function's parameters in reverse order.
        params += reversed([*(setting_option(field) for field in fields), config_option()])
        wrapper.__click_params__ = params  # type: ignore[attr-defined]
        return wrapper

    return decorate
