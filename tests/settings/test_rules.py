"""Rules between settings, and between settings and the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.errors import SettingsError
from stretto.settings import LoadedSettings, is_loopback, load_settings


def load(**environ: str) -> LoadedSettings:
    return load_settings(environ={f"STRETTO_{name.upper()}": value for name, value in environ.items()})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    assert load(host=host).warnings == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "mybox", "localhost.example"])
def test_another_host_needs_a_key_or_a_word(host: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(host=host)
    assert caught.value.param == "host"
    assert "STRETTO_HOST" in caught.value.message
    assert "--allow-open" in str(caught.value.remedy)
    assert load(host=host, api_key="k").warnings == ()
    (warning,) = load(host=host, allow_open="1").warnings
    assert host in warning
    key = tmp_path / "key"
    key.write_text("k\n")
    key.chmod(0o600)
    assert load(host=host, api_key_file=str(key)).warnings == ()


def test_any_web_origin_needs_a_key_or_a_word() -> None:
    with pytest.raises(SettingsError, match="every web page"):
        load(cors_origins="*")
    assert load(cors_origins="*", api_key="k").warnings == ()
    assert "any web page" in load(cors_origins="*", allow_open="1").warnings[0]
    assert load(cors_origins="https://app.example").warnings == ()


@pytest.mark.parametrize("content", ["sesame", "sesame\n", "sesame\r\n", "sesame\n\n"])
def test_the_key_file_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content.encode())
    path.chmod(0o600)
    loaded = load(api_key_file=str(path))
    assert loaded.settings.api_key == "sesame"
    assert loaded.warnings == ()
    path.chmod(0o644)
    assert "every user" in load(api_key_file=str(path)).warnings[0]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words\n", b"sesame\nsecond\n", b"\xc3\xa4\n", b"x" * 513]
)
def test_a_key_file_that_holds_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="must hold one line") as caught:
        load(api_key_file=str(path))
    assert "sesame" not in str(caught.value)


def test_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(api_key_file=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="directory"):
        load(api_key_file=str(tmp_path))


def test_key_and_key_file_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sesame")
    with pytest.raises(SettingsError, match=r"api_key_file \(environment .*\(flag --api-key\)"):
        load_settings({"api_key": "other"}, environ={"STRETTO_API_KEY_FILE": str(path)})


def test_the_provider_file_is_a_file_and_its_keys_take_the_place_of_the_one_key(tmp_path: Path) -> None:
    path, key = tmp_path / "provider.json", tmp_path / "key"
    with pytest.raises(SettingsError, match=f"^provider_config .*there is no file {path}$"):
        load(provider_config=str(path))
    for file in (path, key):
        file.write_text("sesame")
        file.chmod(0o600)
    loaded = load(provider_config=str(path), host="0.0.0.0", cors_origins="*", memory="1")
    assert (loaded.settings.provider_config, loaded.warnings) == (path, ())
    with pytest.raises(
        SettingsError, match=r"^provider_config .*together with api_key \(environment STRETTO_API_KEY\)"
    ):
        load(provider_config=str(path), api_key="k")
    with pytest.raises(
        SettingsError, match=r"together with api_key_file \(environment STRETTO_API_KEY_FILE\)"
    ):
        load(provider_config=str(path), api_key_file=str(key))
    path.chmod(0o644)
    assert "every user" in load(provider_config=str(path)).warnings[0]


def test_echo_settings_belong_to_the_echo_backend() -> None:
    assert load(backend="echo", echo="fail_at_step=3").settings.echo == "fail_at_step=3"
    with pytest.raises(SettingsError, match="no effect"):
        load(echo="fail_at_step=3")
    with pytest.raises(SettingsError, match="cannot be used with backend echo"):
        load(backend="echo", device="cuda")


def test_mlx_has_threads_of_its_own() -> None:
    assert load(backend="mlx", device="mps", dtype="float16").settings.backend == "mlx"
    with pytest.raises(SettingsError, match="has no effect with backend mlx"):
        load(backend="mlx", threads="2")


def test_native_takes_no_device_nor_dtype() -> None:
    assert load(backend="native", device="cpu").settings.backend == "native"
    with pytest.raises(SettingsError, match="cannot be used with backend native"):
        load(backend="native", device="cuda")
    with pytest.raises(SettingsError, match="has no effect with backend native"):
        load(backend="native", dtype="float32")


def test_layers_are_offloaded_by_torch_alone() -> None:
    settings = load(offload="cpu", gpu_layers="3").settings
    assert (settings.offload, settings.gpu_layers) == ("cpu", 3)
    with pytest.raises(SettingsError, match="3 has no effect without offload"):
        load(gpu_layers="3")
    with pytest.raises(SettingsError, match=r"offload .*has no effect with backend native"):
        load(offload="cpu", backend="native")


def test_the_chat_template_must_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    for missing in (path, tmp_path):
        with pytest.raises(SettingsError, match=f"^chat_template .*there is no file {missing}$"):
            load(chat_template=str(missing))
    path.touch()
    assert load(chat_template=str(path)).settings.chat_template == path


def test_an_answer_must_leave_room_for_a_prompt() -> None:
    load(default_max_tokens="4095", max_context="4096")
    with pytest.raises(SettingsError, match="no room for a prompt"):
        load(default_max_tokens="4096", max_context="4096")


def test_a_step_may_take_longer_than_a_stall() -> None:
    load(step_deadline_s="0.26")
    with pytest.raises(SettingsError, match="longer than stall_target_ms"):
        load(step_deadline_s="0.25")


@pytest.mark.parametrize("name", ["state_dir", "models_dir"])
def test_directories_must_be_possible(tmp_path: Path, name: str) -> None:
    file = tmp_path / "file"
    file.touch()
    load(**{name: str(tmp_path / "new" / "deep")})
    for path in (file, file / "below"):
        with pytest.raises(SettingsError, match=f"^{name} .*file is not a directory"):
            load(**{name: str(path)})
    assert not (tmp_path / "new").exists()


def test_the_socket_path_must_be_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="is a directory"):
        load(socket=str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "x" * 100)
    with pytest.raises(SettingsError, match="longer than the 107 bytes"):
        load()


def test_questions_in_other_words_need_an_embedding_model() -> None:
    assert load(semantic_cache="on").settings.embedder == "auto"
    assert load(semantic_cache="exact", embedder="off").settings.semantic_cache == "exact"
    assert load(memory="true", memory_recall="hybrid").settings.memory_recall == "hybrid"
    with pytest.raises(SettingsError, match="has no effect without memory"):
        load(memory_recall="hybrid")
    with pytest.raises(
        SettingsError, match="hybrid compares messages by an embedding model, and embedder is off"
    ):
        load(memory="true", memory_recall="hybrid", embedder="off")
    with pytest.raises(SettingsError, match="embedder is off") as caught:
        load(semantic_cache="on", embedder="off")
    assert caught.value.param == "semantic_cache"
