"""How a setting is declared: one call that holds all there is to know of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from stretto.settings.kinds import (
    Choice,
    Duration,
    FilePath,
    Integer,
    Kind,
    Number,
    Switch,
    Text,
    TextList,
    toml_string,
)

ENVIRONMENT_PREFIX = "STRETTO_"

_T = TypeVar("_T")
_METADATA_KEY = "stretto.setting"


@dataclass(frozen=True, slots=True)
class Spec:
    """All there is to know of one setting but its default.

    Attributes:
        kind: how it is read, written and checked.
        text: one or two sentences for ``--help`` and the docs.
        group: heading that it stands under.
        secret: whether its value is never shown.
        unset: what happens while it is not set; None when it always has a value.
        default_text: shown for a default that depends on the machine.
    """

    kind: Kind
    text: str
    group: str
    secret: bool = False
    unset: str | None = None
    default_text: str | None = None


@dataclass(frozen=True, slots=True)
class SettingField:
    """One row of the table of settings; every name that it goes by follows from ``name``."""

    name: str
    spec: Spec
    make_default: Callable[[], object]

    @property
    def flag(self) -> str:
        """E.g. ``--max-batch``."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """E.g. ``STRETTO_MAX_BATCH``."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """What a value must be, ``none`` included where it may be unset."""
        return self.spec.kind.allowed + (', or "none"' if self.spec.unset is not None else "")

    @property
    def default_text(self) -> str:
        """The default, as help and docs show it."""
        if self.spec.default_text is not None:
            return self.spec.default_text
        default = self.make_default()
        if default is None:
            return f"none: {self.spec.unset}"
        return default if isinstance(default, str) and default else self.spec.kind.to_toml(default)

    def shown(self, value: object) -> str:
        """A value for a message; secrets are masked."""
        if self.spec.secret:
            return "(not shown)"
        if isinstance(value, str):
            return toml_string(value if len(value) <= 200 else value[:200] + "…")
        return repr(value)


def setting(
    default: _T,
    kind: Kind,
    text: str,
    group: str,
    *,
    secret: bool = False,
    unset: str | None = None,
) -> _T:
    """Declare a field of ``Settings`` with a fixed default.

    The value returned is a ``dataclasses.Field``; it is typed as the default so that the field's annotation is checked against it.
    """
    spec = Spec(kind, text, group, secret=secret, unset=unset)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: spec})


def machine_setting(factory: Callable[[], _T], default_text: str, kind: Kind, text: str, group: str) -> _T:
    """Declare a field whose default depends on the machine; ``default_text`` describes it."""
    spec = Spec(kind, text, group, default_text=default_text)
    return dataclasses.field(default_factory=factory, metadata={_METADATA_KEY: spec})


def fields_of(settings_class: type[Any]) -> tuple[SettingField, ...]:
    """The table, in order of declaration."""
    rows = []
    for item in dataclasses.fields(settings_class):
        if item.default_factory is not dataclasses.MISSING:
            make_default: Callable[[], object] = item.default_factory
        else:
            default = item.default

            def make_default(default: object = default) -> object:
                return default

        rows.append(SettingField(item.name, item.metadata[_METADATA_KEY], make_default))
    return tuple(rows)


__all__ = [
    "ENVIRONMENT_PREFIX",
    "Choice",
    "Duration",
    "FilePath",
    "Integer",
    "Kind",
    "Number",
    "SettingField",
    "Spec",
    "Switch",
    "Text",
    "TextList",
    "fields_of",
    "machine_setting",
    "setting",
]
