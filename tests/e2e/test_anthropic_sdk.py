"""The official ``anthropic`` package, unmodified, against the daemon: sync, and async on trio and on asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.types import MessageParam, ToolParam

from support.chat_template import THINKING_TOOLS
from support.daemon import ECHO, RunningDaemon, running

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
LOOK_UP: ToolParam = {
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
# The echo backend answers with the last message of the user.
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"q": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    directory = tmp_path_factory.mktemp("anthropic")
    template = directory / "template.jinja"
    template.write_text(THINKING_TOOLS, encoding="utf-8")
    with running(directory / "daemon", *ECHO, "--chat-template", str(template), "--api-key", "k") as running_:
        yield running_


@contextlib.contextmanager
def client_of(daemon: RunningDaemon, **options: Any) -> Iterator[anthropic.Anthropic]:
    options = {"api_key": "k", "max_retries": 0, **options}
    with anthropic.Anthropic(base_url=daemon.url, **options) as client:
        yield client


def said(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


def test_a_message(daemon: RunningDaemon) -> None:
    with client_of(daemon) as client:
        message = client.messages.create(model="echo", max_tokens=100, messages=QUESTION, system="Be brief.")
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "What is the capital of France?"
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "echo")
    assert message.id.startswith("msg_")
    assert message._request_id == message.id
    assert message.usage.output_tokens == len(block.text) + 1


def whole_and_streamed(client: anthropic.Anthropic, **fields: Any) -> tuple[Any, Any]:
    """The same request both ways; the second finds what the first left in the cache, so it is made twice."""
    request = {"model": "echo", "max_tokens": 300, **fields}
    client.messages.create(**request)
    whole = client.messages.create(**request).to_dict()
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message().to_dict()
    return {**whole, "id": ""}, {**streamed, "id": ""}


@pytest.mark.parametrize(
    ("fields", "kinds", "stop_reason"),
    [
        ({"messages": QUESTION}, ["text"], "end_turn"),
        ({"messages": QUESTION, "max_tokens": 7}, ["text"], "max_tokens"),
        ({"messages": QUESTION, "stop_sequences": ["capital"]}, ["text"], "stop_sequence"),
        ({"messages": said("Let me see. " + CALL), "tools": [LOOK_UP]}, ["text", "tool_use"], "tool_use"),
        ({"messages": said(CALL + CALL), "tools": [LOOK_UP]}, ["tool_use", "tool_use"], "tool_use"),
        (
            {"messages": said("<think>Hm.</think>\nYes."), "thinking": {"type": "adaptive"}},
            ["thinking", "text"],
            "end_turn",
        ),
        (
            {
                "messages": said("<think>Hm.</think>" + CALL),
                "tools": [LOOK_UP],
                "thinking": {"type": "adaptive", "display": "omitted"},
            },
            ["thinking", "tool_use"],
            "tool_use",
        ),
        ({"messages": said(CALL), "tools": [LOOK_UP], "max_tokens": 50}, ["tool_use"], "max_tokens"),
    ],
)
def test_stream_equals_the_whole(
    daemon: RunningDaemon, fields: Any, kinds: list[str], stop_reason: str
) -> None:
    with client_of(daemon) as client:
        whole, streamed = whole_and_streamed(client, **fields)
    for block in (*streamed["content"], *whole["content"]):
        block.pop("parsed_output", None)
        assert block.pop("id", "").startswith("call_" if block["type"] == "tool_use" else "")
    assert streamed == whole
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == stop_reason


def test_a_turn_with_tools_and_thinking_goes_on(daemon: RunningDaemon) -> None:
    messages = said("<think>I should look.</think>" + CALL)
    common: Any = {
        "model": "echo",
        "max_tokens": 300,
        "tools": [LOOK_UP],
        "thinking": {"type": "enabled", "budget_tokens": 200},
    }
    with client_of(daemon) as client:
        first = client.messages.create(messages=messages, **common)
        use = first.content[-1]
        assert use.type == "tool_use"
        assert use.input == {"q": "Paris"}
        result: Any = {
            "type": "tool_result",
            "tool_use_id": use.id,
            "content": [{"type": "text", "text": "It is."}],
        }
        reply: Any = {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]}
        second = client.messages.create(messages=[*messages, first.to_param(), reply], **common)
        lost: Any = {"role": "user", "content": [{**result, "tool_use_id": "toolu_other"}]}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[2\].content\[0\].tool_use_id"):
            client.messages.create(messages=[*messages, first.to_param(), lost], **common)
    assert [block.to_dict() for block in second.content] == [{"type": "text", "text": "Well?"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "any"},
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "now"},
    ],
)
def test_a_call_that_must_come_comes(daemon: RunningDaemon, choice: Any, stream: bool) -> None:
    now: ToolParam = {
        "name": "now",
        "input_schema": {
            "type": "object",
            "properties": {"utc": {"type": "boolean"}},
            "required": ["utc"],
            "additionalProperties": False,
        },
    }
    common: Any = {
        "model": "echo",
        "max_tokens": 400,
        "messages": said("No tool is wanted here."),
        "tools": [LOOK_UP, now] if choice["type"] == "tool" else [now],
        "tool_choice": choice,
    }
    with client_of(daemon) as client:
        if stream:
            with client.messages.stream(**common) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**common)
    assert message.stop_reason == "tool_use"
    uses = [block for block in message.content if block.type == "tool_use"]
    assert uses
    assert all(use.name == "now" and isinstance(use.input["utc"], bool) for use in uses)
    if choice != {"type": "any"}:
        assert len(uses) == 1


def test_counted_tokens_are_those_of_the_message(daemon: RunningDaemon) -> None:
    fields: Any = {
        "model": "echo",
        "messages": said("count me " * 30),
        "system": "Count.",
        "tools": [LOOK_UP],
    }
    with client_of(daemon) as client:
        counted = client.messages.count_tokens(**fields).input_tokens
        first = client.messages.create(max_tokens=1, **fields).usage
        second = client.messages.create(max_tokens=1, **fields).usage
        beta = client.beta.messages.count_tokens(**fields, betas=["token-counting-2024-11-01"]).input_tokens
    for usage in (first, second):
        assert usage.cache_creation_input_tokens is not None
        assert usage.cache_read_input_tokens is not None
        total = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        assert total == counted == beta
    assert (first.cache_read_input_tokens, second.cache_creation_input_tokens) == (0, 0)
    assert first.cache_creation_input_tokens == second.cache_read_input_tokens == (counted - 1) // 16 * 16


def test_a_changing_billing_line_does_not_spoil_the_cache(daemon: RunningDaemon) -> None:
    def usage(client: anthropic.Anthropic, nonce: str) -> tuple[int, int | None]:
        system: Any = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={nonce};"},
            {"type": "text", "text": "You are it. " * 30, "cache_control": {"type": "ephemeral"}},
        ]
        reply = client.messages.create(model="echo", max_tokens=1, messages=QUESTION, system=system)
        return reply.usage.input_tokens, reply.usage.cache_read_input_tokens

    with client_of(daemon) as client:
        assert usage(client, "0a1b2")[1] == 0
        left, cached = usage(client, "ffff0")
    assert cached is not None
    assert cached > 300
    assert left <= 16


def test_an_answer_that_has_begun_goes_on(daemon: RunningDaemon) -> None:
    begun: Any = [*said("(B) is right"), {"role": "assistant", "content": "(B)"}]
    with client_of(daemon) as client:
        message = client.messages.create(model="echo", max_tokens=100, messages=begun)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": " is right"}]


def test_structured_output(daemon: RunningDaemon) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    with client_of(daemon) as client:
        message = client.messages.create(
            model="echo",
            max_tokens=60,
            messages=QUESTION,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
        with pytest.raises(anthropic.BadRequestError, match=r"uniqueItems"):
            client.messages.create(
                model="echo",
                max_tokens=60,
                messages=QUESTION,
                output_config={
                    "format": {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}
                },
            )
    (block,) = message.content
    assert block.type == "text"
    assert block.text.replace(" ", "").replace("\n", "") in ('{"n":1}', '{"n":2}')


def test_more_than_the_context_leaves_is_lowered_and_told(daemon: RunningDaemon) -> None:
    with client_of(daemon) as client:
        message = client.messages.create(
            model="echo", max_tokens=16000, messages=said("x"), extra_body={"chat_template_kwargs": {}}
        )
        assert message.stop_reason == "end_turn"
        long = said("word " * 380)
        with client.messages.stream(model="echo", max_tokens=16000, messages=[*long, *long]) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "model_context_window_exceeded"
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4095 maximum"):
            client.messages.create(model="echo", max_tokens=1, messages=said("x" * 5000))


def test_a_prompt_can_be_read_ahead(daemon: RunningDaemon) -> None:
    with client_of(daemon) as client:
        message = client.messages.create(model="echo", max_tokens=0, messages=said("ahead " * 20))
        assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
        message = client.messages.create(model="echo", max_tokens=1, messages=said("ahead " * 20))
    assert message.usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("extra", "error", "kind", "code"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error", "model_not_found"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "invalid_request_error", "invalid_value"),
        (
            {"extra_body": {"keep_alive": "5m"}},
            anthropic.BadRequestError,
            "invalid_request_error",
            "unknown_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            "unsupported_content",
        ),
        (
            {"extra_headers": {"anthropic-version": "2020-01-01"}},
            anthropic.BadRequestError,
            "invalid_request_error",
            "invalid_header",
        ),
        (
            {"extra_headers": {"content-type": "text/plain"}},
            anthropic.APIStatusError,
            "invalid_request_error",
            "unsupported_media_type",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdk_s_own(
    daemon: RunningDaemon,
    extra: dict[str, Any],
    error: type[anthropic.APIStatusError],
    kind: str,
    code: str,
    stream: bool,
) -> None:
    with client_of(daemon) as client:
        with pytest.raises(error) as caught:
            client.messages.create(
                **{"model": "echo", "max_tokens": 9, "messages": QUESTION, "stream": stream, **extra}
            )
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)
    assert body["request_id"] == caught.value.request_id
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_a_huge_body_is_too_large_in_this_dialect_too(daemon: RunningDaemon) -> None:
    with client_of(daemon) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.create(model="echo", max_tokens=9, messages=said("x" * 33_000_000))
    assert caught.value.status_code == 413
    body: Any = caught.value.body
    assert body["error"]["type"] == "request_too_large"


def test_keys_in_either_header(daemon: RunningDaemon) -> None:
    def ask(client: anthropic.Anthropic, **headers: Any) -> None:
        client.messages.create(model="echo", max_tokens=9, messages=QUESTION, extra_headers=headers)

    with client_of(daemon) as client:
        ask(client)
        ask(client, **{"Authorization": anthropic.Omit(), "x-api-key": "k"})
        ask(client, **{"Authorization": "Bearer wrong", "x-api-key": "k"})
        for headers in ({"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            with pytest.raises(anthropic.AuthenticationError) as caught:
                ask(client, **headers)
            body: Any = caught.value.body
            assert body["error"]["type"] == "authentication_error"


def test_models(daemon: RunningDaemon) -> None:
    with client_of(daemon) as client:
        (listed,) = client.models.list()
        assert (listed.id, listed.type, listed.lifecycle) == ("echo", "model", "active")
        assert (listed.max_input_tokens, listed.max_tokens) == (4096, 4095)
        assert client.models.retrieve("echo") == listed
        assert client.models.list(limit=1).has_next_page() is False
        assert client.models.list(after_id="echo").data == []
        assert client.models.list(before_id="echo").data == []
        assert client.models.list(lifecycle=["retired"]).data == []
        capabilities = listed.capabilities
        assert capabilities is not None
        assert capabilities.thinking.types.adaptive.supported
        assert capabilities.structured_outputs.supported
        assert not capabilities.image_input.supported
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("other")
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            client.models.list(limit=0)
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


def test_the_beta_face_and_everything_that_claude_code_adds(daemon: RunningDaemon) -> None:
    with client_of(daemon, api_key=None, auth_token="k") as client:
        message = client.beta.messages.create(
            model="echo",
            max_tokens=32000,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "<system-reminder>\nBe good.\n</system-reminder>"},
                        {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                    ],
                }
            ],
            system=[{"type": "text", "text": "You are it.", "cache_control": {"type": "ephemeral"}}],
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
            metadata={"user_id": "user_0_account__session_1"},
            thinking={"type": "enabled", "budget_tokens": 31999},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "high"},
            extra_body={"temperature": 1},
            timeout=60,
        )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "<system-reminder>\nBe good.\n</system-reminder>\nhi"


async def _ask_async(daemon: RunningDaemon) -> tuple[Any, Any]:
    async with anthropic.AsyncAnthropic(base_url=daemon.url, api_key="k", max_retries=0) as client:
        common: Any = {"model": "echo", "max_tokens": 300, "messages": said(CALL), "tools": [LOOK_UP]}
        await client.messages.create(**common)
        whole = await client.messages.create(**common)
        async with client.messages.stream(**common) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="echo", messages=QUESTION)
        assert counted.input_tokens > 30
        async with await client.messages.create(**common, stream=True) as raw:
            async for _ in raw:
                break
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**{**common, "model": "other"})
        return {**whole.to_dict(), "id": ""}, {**streamed.to_dict(), "id": ""}


# The package leaves its own generators open when a stream is left early, which trio points out.
@pytest.mark.filterwarnings("ignore:Async generator '(anthropic|httpx2|httpcore2):ResourceWarning")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(daemon: RunningDaemon, backend: str) -> None:
    whole, streamed = anyio.run(_ask_async, daemon, backend=backend)
    assert [{**block, "id": ""} for block in whole.pop("content")] == [
        {**block, "id": ""} for block in streamed.pop("content")
    ]
    assert whole == streamed


def test_a_failure_in_a_stream_is_raised(tmp_path: Path) -> None:
    with running(tmp_path / "d", *ECHO, "--echo", "fail_at_step=12,repeat=0") as daemon:
        with client_of(daemon) as client:
            events = []
            stream = client.messages.create(model="echo", max_tokens=500, messages=QUESTION, stream=True)
            with pytest.raises(anthropic.APIStatusError) as caught:
                events.extend(stream)
    assert [event.type for event in events[:3]] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
