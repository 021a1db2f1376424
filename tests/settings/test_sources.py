"""Where values come from, who wins, and how a wrong one is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import platformdirs
import pytest

from stretto.errors import SettingsError
from stretto.settings import SETTING_FIELDS, Settings, default_config_path, load_settings


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_alone_are_valid() -> None:
    loaded = load_settings(environ={})
    assert loaded.settings == Settings()
    assert loaded.config_path is None
    assert loaded.warnings == ()
    assert {origin.kind for origin in loaded.origins.values()} == {"default"}
    assert (loaded.settings.model, loaded.settings.host, loaded.settings.port) == (
        "smollm2",
        "127.0.0.1",
        8080,
    )
    assert (loaded.settings.max_batch, loaded.settings.queue_limit, loaded.settings.block_tokens) == (
        16,
        4,
        16,
    )
    assert loaded.settings.stall_target_s == 0.25
    assert loaded.settings.max_body_bytes == 32_000_000
    assert loaded.settings.kv_cache_bytes is None


def test_later_sources_win(tmp_path: Path) -> None:
    config = write(tmp_path / "s.toml", "port = 1001\nmax_batch = 2\nqueue_limit = 2\n")
    environ = {"STRETTO_MAX_BATCH": "3", "STRETTO_QUEUE_LIMIT": "3"}
    loaded = load_settings({"queue_limit": "4", "threads": None}, config=config, environ=environ)
    settings, origins = loaded.settings, loaded.origins
    assert (settings.port, settings.max_batch, settings.queue_limit) == (1001, 3, 4)
    assert str(origins["port"]) == f"{config}: port"
    assert str(origins["max_batch"]) == "environment STRETTO_MAX_BATCH"
    assert str(origins["queue_limit"]) == "flag --queue-limit"
    assert str(origins["threads"]) == "default"


def test_config_file_is_found_where_the_platform_keeps_it() -> None:
    path = write(platformdirs.user_config_path("stretto") / "stretto.toml", "port = 99\n")
    assert default_config_path() == path
    loaded = load_settings(environ={})
    assert loaded.settings.port == 99
    assert loaded.config_path == path


def test_config_of_the_environment_and_of_the_flag(tmp_path: Path) -> None:
    by_env, by_flag = write(tmp_path / "a.toml", "port = 1"), write(tmp_path / "b.toml", "port = 2")
    environ = {"STRETTO_CONFIG": str(by_env)}
    assert load_settings(environ=environ).settings.port == 1
    assert load_settings(environ=environ, config=by_flag).settings.port == 2


@pytest.mark.parametrize("source", ["flag", "environment"])
def test_a_named_config_file_must_be_there(tmp_path: Path, source: str) -> None:
    missing = tmp_path / "none.toml"
    by_flag = source == "flag"
    environ = {} if by_flag else {"STRETTO_CONFIG": str(missing)}
    with pytest.raises(SettingsError) as caught:
        load_settings(environ=environ, config=missing if by_flag else None)
    assert str(missing) in str(caught.value)
    assert source in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("kv_cache_gb", "1.5", 1.5),
        ("kv_cache_gb", "none", None),
        ("allow_open", "yes", True),
        ("allow_open", "0", False),
        ("device", "cuda:3", "cuda:3"),
        ("host", "::1", "::1"),
        ("allowed_hosts", "a.example, b.example,a.example", ("a.example", "b.example")),
        ("allowed_hosts", "", ()),
        ("cors_origins", "https://a.example:8443", ("https://a.example:8443",)),
        ("stall_target_ms", "1e2", 100.0),
    ],
)
def test_text_is_read_by_kind(name: str, text: str, value: object) -> None:
    loaded = load_settings(environ={f"STRETTO_{name.upper()}": text})
    assert getattr(loaded.settings, name) == value


BAD = [
    ("port", "65536", "an integer from 0 to 65535"),
    ("port", "-1", "an integer from 0 to 65535"),
    ("port", "80.0", "an integer"),
    ("port", "٣", "an integer"),
    ("port", "", "an integer"),
    ("max_batch", "0", "from 1 to 1024"),
    ("kv_cache_gb", "0", "above 0"),
    ("kv_cache_gb", "nan", "a number"),
    ("kv_cache_gb", "inf", "a number"),
    ("dtype", "int8", "auto, float32, bfloat16 or float16"),
    ("device", "cuda:x", "cuda:N"),
    ("host", "http://localhost", "a host name"),
    ("served_name", "a b", "letters"),
    ("allow_open", "maybe", "true or false"),
    ("allowed_hosts", "a.example,b:80", "without a port"),
    ("cors_origins", "app.example", "origin"),
    ("socket", "/" + "x" * 107, "107 bytes"),
    ("models_dir", "", "a path"),
    ("max_context", "auto", '"none"'),
]


@pytest.mark.parametrize(("name", "text", "allowed"), BAD)
@pytest.mark.parametrize("source", ["flag", "environment"])
def test_a_wrong_text_is_refused_with_field_source_value_and_what_is_allowed(
    name: str, text: str, allowed: str, source: str
) -> None:
    field = next(field for field in SETTING_FIELDS if field.name == name)
    value = (text,) if name in ("allowed_hosts", "cors_origins") else text
    with pytest.raises(SettingsError) as caught:
        load_settings(
            {name: value} if source == "flag" else {}, environ={} if source == "flag" else {field.env: text}
        )
    message = caught.value.message
    assert message.startswith(f"{name} ({source} {field.flag if source == 'flag' else field.env}): must be ")
    assert allowed in message
    assert text[:100] in message
    assert caught.value.param == name


@pytest.mark.parametrize(
    "line",
    [
        'port = "8080"',
        "port = true",
        "port = 8080.0",
        "port = [8080]",
        "allow_open = 1",
        'allow_open = "yes"',
        'allowed_hosts = "a.example"',
        "allowed_hosts = [1]",
        "model = 3",
        "kv_cache_gb = nan",
        "state_dir = 1979-05-27",
        "[port]",
    ],
)
def test_a_wrong_toml_value_names_file_and_key(tmp_path: Path, line: str) -> None:
    config = write(tmp_path / "s.toml", line)
    name = line.strip("[]").split(" ")[0]
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={}, config=config)
    assert caught.value.message.startswith(f"{name} ({config}: {name}): must be ")


@pytest.mark.parametrize("text", ["port = ", "port = 1\nport = 2", "a = " + "[" * 2000, "\x00"])
def test_broken_toml_is_refused(tmp_path: Path, text: str) -> None:
    config = write(tmp_path / "s.toml", text)
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(environ={}, config=config)


def test_toml_that_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "s.toml"
    config.write_bytes(b'model = "\xff"')
    with pytest.raises(SettingsError, match="not UTF-8 \\(byte 9\\)"):
        load_settings(environ={}, config=config)
    config.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(SettingsError, match="larger than"):
        load_settings(environ={}, config=config)


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    config = write(tmp_path / "s.toml", "prot = 1")
    with pytest.raises(SettingsError, match=r"unknown key 'prot'; did you mean port\?"):
        load_settings(environ={}, config=config)
    with pytest.raises(SettingsError, match=r"STRETTO_MAX_BATCHES; did you mean STRETTO_MAX_BATCH\?"):
        load_settings(environ={"STRETTO_MAX_BATCHES": "1"})
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={"STRETTO_ZZZ": "1"})
    assert caught.value.message == "unknown environment variable STRETTO_ZZZ"


def test_variables_of_tests_and_of_others_are_left_alone() -> None:
    load_settings(environ={"STRETTO_TEST_ANYTHING": "?", "STRETTOX": "?", "PATH": "/bin"})


def test_none_unsets_what_an_earlier_source_set(tmp_path: Path) -> None:
    config = write(tmp_path / "s.toml", "max_context = 4096\nthreads = 3\nserved_name = 'x'")
    loaded = load_settings({"max_context": "none"}, config=config, environ={"STRETTO_THREADS": "none"})
    assert (loaded.settings.max_context, loaded.settings.threads, loaded.settings.served_name) == (
        None,
        None,
        "x",
    )
    assert (
        load_settings(environ={}, config=write(tmp_path / "n.toml", 'threads = "none"')).settings.threads
        is None
    )


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    config = write(tmp_path / "etc" / "s.toml", 'state_dir = "here"\nmodels_dir = "~/m"')
    settings = load_settings({"socket": "a/../b.sock"}, config=config, environ={}).settings
    assert settings.state_dir == tmp_path / "etc" / "here"
    assert settings.models_dir == tmp_path / "home" / "m"
    assert settings.socket == tmp_path / "b.sock"


def test_a_secret_is_in_no_message(tmp_path: Path) -> None:
    for bad in ("has space", "ümlaut", "x" * 513):
        with pytest.raises(SettingsError) as caught:
            load_settings({"api_key": bad}, environ={})
        assert bad not in str(caught.value)
        assert "not shown" in str(caught.value)


def test_clients_check_values_but_leave_rules_to_the_daemon() -> None:
    environ = {"STRETTO_HOST": "0.0.0.0"}
    assert load_settings(environ=environ, serving=False).settings.host == "0.0.0.0"
    with pytest.raises(SettingsError):
        load_settings(environ={"STRETTO_PORT": "x"}, serving=False)


def test_the_client_library_finds_the_same_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clientlib import default_socket_path
    from stretto.settings import default_socket

    assert default_socket() == default_socket_path() == tmp_path / "run" / "stretto" / "stretto.sock"
    for runtime in ("relative/dir", None):
        if runtime is None:
            monkeypatch.delenv("XDG_RUNTIME_DIR")
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert default_socket() == default_socket_path()


def test_the_model_library_has_the_same_directory() -> None:
    from stretto.settings import default_models_dir
    from stretto.weights.library import default_models_dir as library_default

    assert default_models_dir() == library_default()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
