"""What follows from the table: printed settings, docs, schema."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import SettingsError
from stretto.settings import SETTING_FIELDS, Settings, load_settings
from stretto.settings.kinds import Duration, FilePath, Integer, Number, Text, TextList
from stretto.settings.render import docs_page, flag_help, print_settings, schema_page, settings_schema

ROOT = Path(__file__).resolve().parents[2]

EVERYTHING = {
    "model": './a model\'s "file" é.gguf',
    "served_name": "org/model:1",
    "backend": "torch",
    "device": "cuda:1",
    "dtype": "bfloat16",
    "threads": "3",
    "host": "10.0.0.1",
    "port": "0",
    "allow_open": True,
    "allowed_hosts": ("a.example", "10.0.0.1"),
    "cors_origins": ("https://a.example",),
    "max_context": "4096",
    "kv_cache_gb": "0.123456789",
    "default_max_tokens": "7",
    "stall_target_ms": "0.1e3",
    "max_body_mb": "0.5",
    "log_format": "json",
    "cache_ttl": "1.5h",
    "cache_judge_threshold": "0",
}


@pytest.mark.parametrize("flags", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_printed_settings_are_a_file_that_gives_the_same_settings(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    first = load_settings(flags, environ={})  # type: ignore[arg-type]
    path = tmp_path / "printed.toml"
    path.write_text(print_settings(first), encoding="utf-8")
    again = load_settings(environ={}, config=path)
    assert again.settings == first.settings
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(settings_schema()).validate(document)
    unset = {field.name for field in SETTING_FIELDS if getattr(first.settings, field.name) is None}
    assert set(document) == {field.name for field in SETTING_FIELDS} - unset


def test_printed_settings_name_sources_and_mask_secrets(tmp_path: Path) -> None:
    config = tmp_path / "odd\nname = 1.toml"
    config.write_text("port = 1")
    text = print_settings(
        load_settings({"max_batch": "2"}, config=config, environ={"STRETTO_API_KEY": "sesame"})
    )
    assert "sesame" not in text
    assert '# api_key = "********"  # environment STRETTO_API_KEY' in text
    assert "max_batch = 2  # flag --max-batch" in text
    assert "odd\\nname" in text
    assert tomllib.loads(text)["port"] == 1
    key = tmp_path / "key"
    key.write_text("sesame")
    text = print_settings(load_settings(environ={"STRETTO_API_KEY_FILE": str(key)}))
    assert "sesame" not in text
    assert '# api_key = "********"  # api_key_file' in text
    assert tomllib.loads(text)["api_key_file"] == str(key)


@pytest.mark.parametrize(
    ("page", "path"), [("docs", "docs/settings.md"), ("schema", "schemas/settings.json")]
)
def test_generated_files_are_current(page: str, path: str) -> None:
    made = {"docs": docs_page, "schema": schema_page}[page]()
    assert (ROOT / path).read_text(encoding="utf-8") == made, (
        f"run: python -m stretto.settings {page} > {path}"
    )


def test_docs_hold_nothing_of_this_machine(tmp_path: Path) -> None:
    assert str(tmp_path) not in docs_page()
    assert str(Path.home()) + "/" not in docs_page()
    for field in SETTING_FIELDS:
        assert f"`{field.name}`<br>`{field.flag}`<br>`{field.env}`" in docs_page()


def test_the_generator_is_a_command() -> None:
    run = [sys.executable, "-m", "stretto.settings"]
    done = subprocess.run([*run, "schema"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == settings_schema()
    assert subprocess.run([*run, "nonsense"], capture_output=True, timeout=60).returncode == 2


def test_the_schema_is_one_and_judges_as_the_reader_does(tmp_path: Path) -> None:
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    path = tmp_path / "s.toml"
    cases = [
        "port = 65535", "port = 65536", "port = -1", 'port = "1"', "port = true", "max_batch = 0", "threads = 'none'",
        "threads = 'some'", "kv_cache_gb = 0", "kv_cache_gb = 0.1", "device = 'cuda:1'", "device = 'gpu'", "dtype = 'int8'",
        "allowed_hosts = ['a', 'b.c']", "allowed_hosts = ['a:1']", "allowed_hosts = 'a'", "cors_origins = ['https://x']",
        "allow_open = false", "allow_open = 0", "model = ''", "nonsense = 1", "ping_interval_s = 3600.5", "log_level = 'warning'",
    ]  # fmt: skip
    verdicts = []
    for case in cases:
        path.write_text(case.replace("'", '"'))
        try:
            load_settings(environ={}, config=path, serving=False)
            accepted = True
        except SettingsError:
            accepted = False
        assert validator.is_valid(tomllib.loads(path.read_text())) is accepted, case
        verdicts.append(accepted)
    assert {True, False} == set(verdicts)


def test_the_table_is_the_dataclass() -> None:
    assert [field.name for field in SETTING_FIELDS] == [field.name for field in dataclasses.fields(Settings)]
    assert len({field.flag for field in SETTING_FIELDS}) == len(SETTING_FIELDS)
    for field in SETTING_FIELDS:
        assert field.spec.text.endswith((".", ",")), field.name
        default = field.make_default()
        assert (default is None) == (field.spec.unset is not None), field.name
        if default is not None:
            # A default is a value that its own reader accepts.
            text = field.spec.kind.to_toml(default)
            assert field.spec.kind.from_toml(tomllib.loads(f"x = {text}")["x"], Path("/")) == default


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(TEXT.filter(lambda text: "\x00" not in text))
def test_text_survives_toml(text: str) -> None:
    kind = Text(r"(?s:.*)", "anything")
    assert kind.from_toml(tomllib.loads(f"x = {kind.to_toml(text)}")["x"], Path("/")) == text


@given(st.lists(TEXT, max_size=4, unique=True))
def test_lists_survive_toml(items: list[str]) -> None:
    kind = TextList(r"(?s:.*)", "anything")
    assert kind.from_toml(tomllib.loads(f"x = {kind.to_toml(tuple(items))}")["x"], Path("/")) == tuple(items)


@given(st.integers(1, 10**11))
def test_times_survive_toml_and_text(milliseconds: int) -> None:
    kind = Duration()
    seconds = milliseconds / 1000
    text = tomllib.loads(f"x = {kind.to_toml(seconds)}")["x"]
    assert kind.from_toml(text, Path("/")) == pytest.approx(seconds, abs=1e-6)
    assert jsonschema.Draft202012Validator(kind.schema()).is_valid(text)


@pytest.mark.parametrize("text", ["", "0s", "30", "s", "-1s", "1 s", "1w", "1.s", "1e3s", "٣s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - kinds raise it without a message
        Duration().from_text(text)


def test_times_in_every_unit() -> None:
    found = [Duration().from_text(text) for text in ("30s", "15m", "12h", "7d", "1.5h")]
    assert found == [30.0, 900.0, 43_200.0, 604_800.0, 5400.0]
    assert [Duration().to_toml(value) for value in found] == ['"30s"', '"15m"', '"12h"', '"7d"', '"90m"']


@given(st.floats(0, 1e6), st.integers(-1000, 1000))
def test_numbers_survive_toml_and_text(number: float, integer: int) -> None:
    real, whole = Number(0, 1e6), Integer(-1000, 1000)
    assert real.from_toml(tomllib.loads(f"x = {real.to_toml(number)}")["x"], Path("/")) == number
    assert real.from_text(real.to_toml(number)) == number
    assert whole.from_toml(tomllib.loads(f"x = {whole.to_toml(integer)}")["x"], Path("/")) == integer
    assert whole.from_text(whole.to_toml(integer)) == integer


@given(TEXT)
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    for field in SETTING_FIELDS:
        try:
            value = field.spec.kind.from_text(text)
        except ValueError:
            continue
        shown = field.spec.kind.to_toml(value)
        assert field.spec.kind.from_toml(tomllib.loads(f"x = {shown}")["x"], Path("/")) == value
    assert FilePath().max_bytes > 0


def test_a_flag_whose_metavar_says_what_is_allowed_does_not_say_it_again() -> None:
    helps = {field.name: flag_help(field) for field in SETTING_FIELDS}
    assert "Must be" not in helps["state_dir"]
    assert "Must be" not in helps["backend"]
    assert "Must be an integer from 1 to 1024" in helps["max_batch"]
