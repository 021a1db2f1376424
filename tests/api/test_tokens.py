"""Tokens and text over a real server: both servers' names, limits, errors and the key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stretto.api import public_app
from stretto.backends.echo import EchoTokenizer
from stretto.pipeline import Tokens
from support.ledger_books import open_books
from support.serving_pipeline import FakePipeline, echo_prompt
from support.serving_server import RunningServer, post, running

IM_START, IM_END, BOS = 257, 258, 256


class WithBos(EchoTokenizer):
    """A model that wants BOS."""

    add_bos = True


@asynccontextmanager
async def serving(pipeline: FakePipeline | None = None, **options: Any) -> AsyncIterator[RunningServer]:
    async with running(public_app(pipeline or FakePipeline(), **options)) as server:
        yield server


async def ask(server: RunningServer, target: str, document: Any, *headers: str) -> tuple[int, Any]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (reply,) = await server.exchange(
        post(data, "Content-Type: application/json", "Connection: close", *headers, target=target)
    )
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize(
    ("document", "ids"),
    [
        ({"prompt": "hé"}, [BOS, 104, 195, 169]),
        ({"prompt": "hé", "add_special_tokens": False}, [104, 195, 169]),
        ({"prompt": "<|bos|>h"}, [BOS, 104]),
        ({"prompt": ""}, [BOS]),
        ({"prompt": "<|im_end|>", "add_special_tokens": False}, [IM_END]),
        ({"prompt": "<|im", "add_special_tokens": False, "model": "tiny"}, [60, 124, 105, 109]),
        ({"content": "h<|im_end|>"}, [104, IM_END]),
        ({"content": "h", "add_special": True}, [BOS, 104]),
        ({"content": "<|im_end|>", "parse_special": False}, list(b"<|im_end|>")),
        ({"content": ""}, []),
    ],
)
async def test_texts(document: dict[str, Any], ids: list[int]) -> None:
    async with serving(FakePipeline(tokens=Tokens(WithBos(), echo_prompt))) as server:
        status, reply = await ask(server, "/tokenize", document)
    assert status == 200
    assert reply == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}


async def test_a_conversation() -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "user", "content": "Hi"}]
    async with serving() as server:
        for more in (
            {},
            {"add_generation_prompt": True, "add_special_tokens": False, "model": "pulled/tiny"},
        ):
            status, reply = await ask(server, "/tokenize", {"messages": messages, **more})
            assert status == 200
            assert reply["tokens"] == EchoTokenizer().encode(text, allow_special=True)
        status, reply = await ask(server, "/tokenize", {"messages": [{"role": "nobody"}]})
    assert status == 400
    assert reply["error"]["param"] == "messages[0].role"


async def test_tokens_one_by_one() -> None:
    async with serving() as server:
        _, reply = await ask(
            server, "/tokenize", {"content": "h<|im_end|>é", "return_token_strs": True, "with_pieces": True}
        )
    assert reply["token_strs"] == ["h", "<|im_end|>", "\ufffd", "\ufffd"]
    assert reply["tokens"] == [
        {"id": 104, "piece": "h"},
        {"id": IM_END, "piece": "<|im_end|>"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]


async def test_text_of_tokens() -> None:
    async with serving() as server:
        for ids, text in (([104, 195, 169], "hé"), ([IM_START, 104, IM_END], "<|im_start|>h<|im_end|>"), ([195], "\ufffd"), ([], "")):  # fmt: skip
            assert await ask(server, "/detokenize", {"tokens": ids}) == (
                200,
                {"prompt": text, "content": text},
            )


@pytest.mark.parametrize(
    ("target", "document", "code", "param"),
    [
        ("/tokenize", {}, "missing_parameter", "prompt"),
        ("/tokenize", {"prompt": None}, "missing_parameter", "prompt"),
        ("/tokenize", {"prompt": 7}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "invalid_value", "content"),
        ("/tokenize", {"prompt": "a", "messages": [{}]}, "invalid_value", "messages"),
        ("/tokenize", {"prompt": "a", "add_special": True}, "invalid_value", "add_special"),
        ("/tokenize", {"prompt": "a", "tools": []}, "invalid_value", "tools"),
        ("/tokenize", {"messages": [{}], "add_special_tokens": True}, "invalid_value", "add_special_tokens"),
        ("/tokenize", {"messages": [{}], "add_generation_prompt": False}, "unsupported_value", "add_generation_prompt"),
        ("/tokenize", {"messages": [{}], "continue_final_message": True}, "unsupported_value", "continue_final_message"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "unknown_parameter", "text"),
        ("/tokenize", b"{", "invalid_json", None),
        ("/tokenize", {"prompt": "x" * (2**22 + 1)}, "invalid_value", "prompt"),
        ("/detokenize", {}, "missing_parameter", "tokens"),
        ("/detokenize", {"tokens": "x"}, "invalid_value", "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "invalid_value", "tokens[1]"),
        ("/detokenize", {"tokens": [1, 260]}, "invalid_value", "tokens[1]"),
        ("/detokenize", {"tokens": [1] * (2**18 + 1)}, "invalid_value", "tokens"),
    ],
)  # fmt: skip
async def test_what_is_wrong(target: str, document: Any, code: str, param: str | None) -> None:
    async with serving() as server:
        status, reply = await ask(server, target, document)
    assert status == 400
    assert (reply["error"]["code"], reply["error"]["param"]) == (code, param)


async def test_another_model_and_no_json() -> None:
    async with serving() as server:
        for target, document in (("/tokenize", {"prompt": "a", "model": "x"}), ("/detokenize", {"tokens": [], "model": "x"})):  # fmt: skip
            status, reply = await ask(server, target, document)
            assert (status, reply["error"]["code"]) == (404, "model_not_found")
            (plain,) = await server.exchange(
                post(b"{}", "Content-Type: text/plain", "Connection: close", target=target)
            )
            assert plain.status == 415


async def test_the_key_is_asked_for() -> None:
    async with serving(api_key="k") as server:
        for target, document in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            assert (await ask(server, target, document))[0] == 401
            assert (await ask(server, target, document, "Authorization: Bearer k"))[0] == 200


async def test_a_key_of_the_ledger_is_asked_for(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _), serving(ledger=ledger) as server:
        for target, document in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            status, reply = await ask(server, target, document)
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
