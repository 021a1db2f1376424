"""``stretto doctor``, and what it reads of the machine."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stretto import needs
from stretto.backends.base import BackendInfo
from stretto.backends.host import Memory
from stretto.cli import checks, forecast
from stretto.cli.machine import read_machine
from support.cli_server import StandIn
from support.weights_packed import QUANTIZATION, packed_directory
from support.weights_tiny import TinyShape, tiny_gguf

Run = Callable[..., Result]


def findings(result: Result) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is imported here: what its probe says is given."""
    monkeypatch.setattr(
        checks, "probe_torch", lambda: BackendInfo("torch", True, "PyTorch", ("cuda:0", "cpu"))
    )


def test_a_machine_that_can_serve(run: Run, own_place: Path) -> None:
    result = run("doctor", "--backend", "echo", "--port", "0")
    assert result.exit_code == 0
    assert result.stdout.endswith("This machine can serve.\n")
    assert "FAIL" not in result.stdout
    found = findings(run("doctor", "--backend", "echo", "--port", "0", "--json"))
    assert found["daemon"]["detail"].startswith("none is running")
    assert found["state_dir"]["detail"].endswith("(will be made)")
    assert not (own_place / "state").exists()


def test_a_missing_model_prevents_serving_and_says_what_to_do(run: Run) -> None:
    result = run("doctor", "--port", "0")
    assert result.exit_code == 1
    assert "Get it with: stretto pull smollm2" in result.stdout
    assert result.stdout.endswith("Something prevents serving; see FAIL above.\n")


def test_a_model_file_that_is_cut_short_prevents_serving(run: Run, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    assert findings(run("doctor", "--json", "--model", str(path)))["model"]["state"] == "ok"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    found = findings(run("doctor", "--json", "--model", str(path)))["model"]
    assert found["state"] == "fail"
    assert "truncated" in found["detail"]


def test_wrong_settings_are_a_finding_and_hide_nothing_else(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_PORT", "many")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["can_serve"] is False
    found = findings(result)
    assert found["settings"]["state"] == "fail"
    assert "STRETTO_PORT" in found["settings"]["detail"]
    assert {"python", "memory", "model", "socket"} <= set(found)


def test_a_backend_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "probe_torch", lambda: BackendInfo("torch", False, "PyTorch is not installed")
    )
    monkeypatch.setattr(checks, "probe_native", lambda: BackendInfo("native", False, "not built"))
    assert findings(run("doctor", "--json"))["backend torch"]["state"] == "fail"
    assert findings(run("doctor", "--json", "--backend", "echo"))["backend torch"]["state"] == "note"


def test_native_stands_in_for_torch_only_where_it_can(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "probe_torch", lambda: BackendInfo("torch", False, "PyTorch is not installed")
    )
    monkeypatch.setattr(checks, "probe_native", lambda: BackendInfo("native", True, "avx2", ("cpu",)))
    assert findings(run("doctor", "--json"))["backend torch"]["state"] == "note"
    for flags in (("--backend", "torch"), ("--dtype", "float32"), ("--device", "cuda")):
        assert findings(run("doctor", "--json", *flags))["backend torch"]["state"] == "fail"


def test_native_kernels_that_are_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "probe_native", lambda: BackendInfo("native", False, "not built"))
    assert findings(run("doctor", "--json"))["backend native"]["state"] == "note"
    assert findings(run("doctor", "--json", "--backend", "native"))["backend native"]["state"] == "fail"


def test_mlx_is_needed_for_what_is_packed_for_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(packed_directory(tmp_path / "packed", quantization=QUANTIZATION))
    monkeypatch.setattr(checks, "probe_torch", lambda: BackendInfo("torch", False, "not installed"))
    monkeypatch.setattr(checks, "probe_native", lambda: BackendInfo("native", False, "not built"))
    monkeypatch.setattr(checks, "probe_mlx", lambda: BackendInfo("mlx", True, "MLX", ("mps", "cpu")))
    found = findings(run("doctor", "--json", "--model", path, "--device", "mps"))
    assert [found[name]["state"] for name in ("backend torch", "backend mlx", "model")] == [
        "note",
        "ok",
        "ok",
    ]
    assert "device" not in found
    assert findings(run("doctor", "--json", "--model", path, "--device", "cuda"))["device"]["state"] == "fail"
    monkeypatch.setattr(checks, "probe_mlx", lambda: BackendInfo("mlx", False, "not installed"))
    missing = findings(run("doctor", "--json", "--model", path))["backend mlx"]
    assert missing["state"] == "fail"
    assert "pip install 'stretto[mlx]'" in missing["remedy"]
    assert findings(run("doctor", "--json"))["backend mlx"]["state"] == "note"
    assert findings(run("doctor", "--json", "--backend", "mlx"))["backend mlx"]["state"] == "fail"


@pytest.mark.parametrize(
    ("device", "missing"),
    [("cuda", False), ("cuda:0", False), ("cpu", False), ("cuda:1", True), ("mps", True)],
)
def test_a_device_that_is_missing(run: Run, device: str, missing: bool) -> None:
    assert ("device" in findings(run("doctor", "--json", "--device", device))) is missing


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "probe_torch", lambda: BackendInfo("torch", False, "PyTorch is not installed")
    )
    monkeypatch.setattr(forecast, "probe_torch", checks.probe_torch)
    if not checks.probe_native().available:
        pytest.skip("there are no native kernels here")


def test_what_a_model_will_need(run: Run, tmp_path: Path, no_torch: None) -> None:
    path = str(tiny_gguf(tmp_path, quant="Q4_0"))
    result = run("doctor", path, "--json", "--port", "0", "--max-context", "100")
    assert result.exit_code == 0
    told = json.loads(result.stdout)["needs"]
    assert (told["backend"], told["device"], told["largest_context_tokens"]) == ("native", "cpu", 100)
    assert told["model_context_tokens"] == 256
    assert told["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    found = findings(result)
    assert found["computed by"]["detail"].startswith("native, since its weights are quantised")
    assert re.search(
        r"weights [\d.]+ kB, KV 256\.0 kB per 1,000 tokens in bfloat16; .* are free; it fits",
        found["needs"]["detail"],
    )
    assert found["context"]["detail"] == "the largest is 100 tokens of the model's 256"
    assert "the largest is 256 tokens, the model's own" in run("doctor", path, "--port", "0").stdout


def test_eight_bits_hold_more(
    run: Run, tmp_path: Path, no_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(tmp_path, quant="Q4_0", shape=TinyShape(context=4096)))
    plain = json.loads(run("doctor", path, "--json", "--port", "0").stdout)["needs"]
    free = plain["weights_bytes"] + 2000 * plain["kv_bytes_per_token"]
    monkeypatch.setattr(needs, "host_memory", lambda: Memory(free, 1 << 30))
    short = run("doctor", path, "--json", "--port", "0")
    assert "--kv-dtype int8 holds nearly twice" in findings(short)["smaller"]["remedy"]
    assert "smaller" not in findings(run("doctor", path, "--json", "--port", "0", "--max-context", "100"))
    eight = run("doctor", path, "--json", "--port", "0", "--kv-dtype", "int8")
    assert "smaller" not in findings(eight)
    told, before = json.loads(eight.stdout)["needs"], json.loads(short.stdout)["needs"]
    assert (before["kv_dtype"], told["kv_dtype"]) == ("bfloat16", "int8")
    # Heads of 16 values: two bytes each, or one and a scale of two bytes.
    assert told["kv_bytes_per_token"] * 32 == before["kv_bytes_per_token"] * 18
    gain = told["largest_context_tokens"] / before["largest_context_tokens"]
    assert gain == pytest.approx(32 / 18, rel=0.02)


def test_a_model_that_does_not_fit(
    run: Run, tmp_path: Path, no_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(tmp_path, quant="Q4_0"))
    monkeypatch.setattr(needs, "host_memory", lambda: Memory(1000, 1 << 30))
    result = run("doctor", path, "--port", "0")
    assert result.exit_code == 1
    assert "the weights alone do not fit into the memory that is free" in result.stdout
    assert json.loads(run("doctor", path, "--json").stdout)["needs"]["fault"]


def test_no_model_and_no_backend(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("doctor", "--json", "--backend", "echo").stdout)["needs"] is None
    assert json.loads(run("doctor", "--json").stdout)["needs"] is None
    path = str(tiny_gguf(tmp_path))
    monkeypatch.setattr(forecast, "probe_torch", lambda: BackendInfo("torch", False, "not installed"))
    assert (
        "no backend here" in findings(run("doctor", path, "--json", "--backend", "torch"))["needs"]["detail"]
    )
    twice = run("doctor", path, "--model", path)
    assert twice.exit_code == 2
    assert "named twice" in twice.stderr


def forecast_of(**values: object) -> needs.ModelNeeds:
    plain = needs.ModelNeeds(
        "torch", "r", "cpu", "float32", "r", 4000, "float32", 1, 1 << 30, 256, 256, 256, ""
    )
    return dataclasses.replace(plain, **values)  # type: ignore[arg-type]


def test_what_is_missing_to_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "NVIDIA", tmp_path / "version")
    monkeypatch.setattr(forecast, "probe_native", lambda: BackendInfo("native", True, "avx2"))
    assert forecast._faster(forecast_of(), 4000, True) == []
    (packed,) = forecast._faster(forecast_of(), 1000, True)
    assert "every token reads 4.0 kB" in packed.detail
    assert packed.remedy == "--backend native computes from the packed weights."
    assert forecast._faster(forecast_of(), 1000, False) == []
    (tmp_path / "version").touch()
    assert ["NVIDIA" in one.detail for one in forecast._faster(forecast_of(), None, False)] == [True]
    assert forecast._faster(forecast_of(device="cuda:0"), 1000, True) == []
    monkeypatch.setattr(forecast, "probe_native", lambda: BackendInfo("native", False, "not built"))
    assert "native kernels" in forecast._faster(forecast_of(backend="mlx"), None, False)[0].detail
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(forecast, "probe_mlx", lambda: BackendInfo("mlx", False, "not installed"))
    assert "without MLX" in forecast._faster(forecast_of(backend="native"), None, False)[0].detail
    unknown = forecast._memory(forecast_of(kv_bytes_per_token=None, largest_context_tokens=None))
    assert "unknown before it is loaded" in unknown[0].detail


def test_a_running_daemon_is_noticed(run: Run, daemon: StandIn) -> None:
    found = findings(run("doctor", "--json", "--backend", "echo"))
    assert found["daemon"]["detail"] == f"one is running at {daemon.path}, ready"
    assert "not tried" in found["port"]["detail"]


def test_a_port_in_use(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = findings(run("doctor", "--json", "--backend", "echo", "--port", str(port)))
    assert found["port"]["state"] == "fail"
    assert "in use" in found["port"]["detail"]
    assert "--port" in found["port"]["remedy"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    finding = checks.check_folder("state_dir", tmp_path / "new")
    assert finding.state == "fail"
    assert str(tmp_path) in finding.detail


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       8000000 kB\nMemFree: 1 kB\nMemAvailable:   4000000 kB\nHugePages_Total: 0\n"


def test_the_whole_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    found = read_machine(machine(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (found.cores, found.memory_bytes, found.free_bytes) == (6.0, 8_192_000_000, 4_096_000_000)


def test_limits_of_every_control_group_above_us_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    group = "sys/fs/cgroup/box.slice/stretto.service/"
    found = read_machine(
        machine(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/box.slice/stretto.service\n",
                group + "cpu.max": "max 100000\n",
                group + "memory.max": "max\n",
                "sys/fs/cgroup/box.slice/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/box.slice/memory.max": "2000000000\n",
                "sys/fs/cgroup/box.slice/memory.current": "500000000\n",
                "sys/fs/cpu.max": "1 100000\n",
            },
        )
    )
    assert (found.cores, found.memory_bytes, found.free_bytes) == (1.5, 2_000_000_000, 1_500_000_000)


@pytest.mark.parametrize("text", ["", "x", "100000", "1 0", "-1 5"])
def test_what_cannot_be_read_limits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    found = read_machine(machine(tmp_path, {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": "x"}))
    assert found.cores == 2.0
    assert found.free_bytes is None


@pytest.mark.torch
def test_the_probe_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    info = checks.probe_torch()
    assert info.available
    assert "cpu" in info.devices
