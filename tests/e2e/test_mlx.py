"""The whole daemon over MLX with a tiny packed model: chosen unasked, served to several at once, restarted, and ended cleanly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from support.daemon import RunningDaemon, running
from support.http1 import exchange_json
from support.mlx_models import tiny_mlx

pytestmark = [pytest.mark.mlx, pytest.mark.timeout(300)]

BLOCK = 4
SMALL = (
    "--kv-cache-gb", "0.01", "--max-context", "200", "--block-tokens", str(BLOCK), "--served-name", "tiny",
)  # fmt: skip
TEXTS = ("What is the name of the capital of France? " * 2, "Hello", "def print(hello world)")


def ask(daemon: RunningDaemon, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": text, "temperature": 0, "max_tokens": 6, **options}
    status, reply = exchange_json(daemon.port, "POST", "/v1/completions", body)
    assert status == 200, reply
    found: dict[str, Any] = reply
    return found


def text_of(reply: dict[str, Any]) -> str:
    found: str = reply["choices"][0]["text"]
    return found


def test_a_packed_model_is_served_restarted_and_ended(tmp_path: Path) -> None:
    model = tiny_mlx(tmp_path / "model", "gemma3_text", bits=4)
    with running(tmp_path, "--model", str(model), *SMALL) as daemon:
        assert "backend=mlx device=cpu dtype=float32" in daemon.ready_line
        alone = [text_of(ask(daemon, text)) for text in TEXTS]
        with ThreadPoolExecutor(3) as pool:
            assert [text_of(reply) for reply in pool.map(lambda text: ask(daemon, text), TEXTS)] == alone
        answer = ask(daemon, TEXTS[1], guided_choice=["red", "blue"], max_tokens=20)
        assert text_of(answer) in ("red", "blue")
        status, body = exchange_json(daemon.socket, "GET", "/admin/status")
        assert status == 200
        backend = body["engine"]["backend"]
        assert backend["packing"] == "4 bits affine, groups of 32"
        assert backend["memory"]["active_bytes"] > 0
    # What was read is read back from the disk: more than a window of 8 tokens.
    with running(tmp_path, "--model", str(model), *SMALL) as daemon:
        again = ask(daemon, TEXTS[0])
        assert text_of(again) == alone[0]
        usage = again["usage"]
        assert (
            usage["prompt_tokens_details"]["cached_tokens"]
            == (usage["prompt_tokens"] - 1) // BLOCK * BLOCK
            > 8
        )


def test_what_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    model = tiny_mlx(tmp_path / "model")
    with pytest.raises(AssertionError, match=r"ended with 1 before it was ready") as caught:
        with running(tmp_path, "--model", str(model), "--backend", "mlx", "--device", "mps", *SMALL):
            pass
    assert "The device 'mps' is not available to MLX" in str(caught.value)
