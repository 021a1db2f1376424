"""What follows from the table: the printed settings, the docs page and the JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from stretto.settings.declare import ENVIRONMENT_PREFIX, SettingField, Switch, TextList
from stretto.settings.kinds import JsonObject
from stretto.settings.load import CONFIG_ENV, LoadedSettings
from stretto.settings.table import SETTING_FIELDS

SCHEMA_ID = "urn:stretto:schema:settings"


def _groups() -> Iterator[tuple[str, list[SettingField]]]:
    for group, fields in groupby(SETTING_FIELDS, key=lambda field: field.spec.group):
        yield group, list(fields)


def _one_line(text: str) -> str:
    """A comment must not end early: control characters are escaped."""
    return (
        json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
        if not text.isprintable()
        else text
    )


def print_settings(loaded: LoadedSettings) -> str:
    """Each effective value with its source, as TOML that can be used as a file; secrets are masked and commented out."""
    lines = ["# Effective settings. Use this as a file with: stretto serve --config FILE"]
    if loaded.config_path is not None:
        lines.append(f"# Read from {_one_line(str(loaded.config_path))}")
    key_from_file = loaded.settings.api_key_file is not None
    for group, fields in _groups():
        lines += ["", f"# {group}"]
        for field in fields:
            value = getattr(loaded.settings, field.name)
            origin = _one_line(str(loaded.origins[field.name]))
            if value is None:
                lines.append(f"# {field.name} is not set: {field.spec.unset}")
            elif field.spec.secret:
                source = "api_key_file" if field.name == "api_key" and key_from_file else origin
                lines.append(f'# {field.name} = "********"  # {source}')
            else:
                lines.append(f"{field.name} = {field.spec.kind.to_toml(value)}  # {origin}")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def docs_page() -> str:
    """``docs/settings.md``."""
    lines = [
        "# Settings",
        "",
        "<!-- Made by `python -m stretto.settings docs`; a test checks that it is current. -->",
        "",
        "A setting comes from its default, a TOML file, the environment or a flag of `stretto serve`; the later wins. The file is the",
        f"one named by `--config` or `{CONFIG_ENV}`, else `stretto.toml` in the platform's configuration directory",
        "(`~/.config/stretto/` on Linux) if it is there. Its keys are flat, and relative paths in it are relative to the file.",
        "",
        "The flag of a setting is its name with dashes (`--max-batch`), its environment variable is its name in capitals after",
        f"`{ENVIRONMENT_PREFIX}` (`{ENVIRONMENT_PREFIX}MAX_BATCH`). Flags of lists can be repeated; in the environment, commas separate the items. Where a",
        'setting may be unset, `"none"` unsets what an earlier source has set.',
        "",
        "All are checked before anything loads. A wrong one, an unknown key of the file and an unknown environment variable that starts with",
        f"`{ENVIRONMENT_PREFIX}` end the command with exit status 2 and a line that names the setting, where it came from, its value and what is allowed.",
        "",
        "`stretto serve --print-settings` prints the effective values and their sources, as a file that can be used with `--config`.",
    ]
    for group, fields in _groups():
        lines += ["", f"## {group}", "", "| setting | default | allowed | meaning |", "|---|---|---|---|"]
        for field in fields:
            default = _cell(field.default_text)
            lines.append(
                f"| `{field.name}`<br>`{field.flag}`<br>`{field.env}` | {default} | {_cell(field.allowed)} "
                f"| {_cell(field.spec.text)} |"
            )
    lines += [
        "",
        "## Rules between settings",
        "",
        "- A `host` other than the loopback needs `api_key` or `api_key_file`, or an explicit `allow_open`; so does `*` in `cors_origins`.",
        "- `api_key` and `api_key_file` exclude each other.",
        '- `echo` needs `backend = "echo"`, which computes on no device but `auto` and `cpu`.',
        "- `chat_template` is a file that can be read.",
        "- `default_max_tokens` is less than `max_context`, and `step_deadline_s` longer than `stall_target_ms`.",
        "- `state_dir`, `models_dir` and the folder of `socket` are directories, or can be made.",
    ]
    return "\n".join(lines) + "\n"


def settings_schema() -> JsonObject:
    """JSON Schema 2020-12 of the TOML file."""
    properties: JsonObject = {}
    for field in SETTING_FIELDS:
        schema = field.spec.kind.schema()
        if field.spec.unset is not None:
            schema = {"anyOf": [schema, {"const": "none"}]}
        properties[field.name] = {"description": field.spec.text, **schema}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "stretto.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def schema_page() -> str:
    """``schemas/settings.json``."""
    return json.dumps(settings_schema(), indent=2, ensure_ascii=False) + "\n"


def flag_help(field: SettingField) -> str:
    """Help of one flag: meaning, what is allowed unless the metavar says it, default, and the variable."""
    kind = field.spec.kind
    text = field.spec.text
    said = field.allowed == f"a {kind.metavar.lower()}" or kind.metavar in field.allowed.replace(
        ", ", "|"
    ).replace(" or ", "|")
    if not isinstance(kind, Switch) and not said:
        text += f" Must be {field.allowed}."
    if isinstance(kind, TextList):
        text += " Can be repeated."
    return f"{text}  [{field.env}; default: {field.default_text}]"
