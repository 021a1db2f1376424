"""Answers with calls in every tool dialect, and what is in them; written here by hand, not by the code under test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.conversation import ToolSpec
from stretto.conversation.channels import ChannelReader, Piece, Thought, Words
from stretto.conversation.reasoning import ReasoningFormat, choose_reasoning
from stretto.conversation.tool_dialects import TOOL_DIALECTS, CallArguments, CallOpened

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"enum": ["C", "F"]},
            "detail": {"type": "object"},
            "hint": {"type": ["string", "null"]},
            "any": {},
        },
        "required": ["city"],
    },
)
CLOCK = ToolSpec("clock", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)
THINK = choose_reasoning("<think></think>")
assert THINK is not None


@dataclass(frozen=True)
class Example:
    """A text in a dialect, and the text, reasoning and calls (name, arguments) that are in it."""

    dialect: str
    raw: str
    text: str
    calls: tuple[tuple[str, Any], ...]
    thought: str = ""


LONDON = ("get_weather", {"city": "London"})
NOW = ("clock", {})

EXAMPLES = (
    Example(
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "London"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        "Let me look.",
        (LONDON, NOW),
    ),
    Example(
        "hermes",
        '<tool_call>{"arguments":{"city":"a \\"b\\" {c} \\ud83d\\ude00 </tool_call>"},"name":"get_weather"}</tool_call>',
        "",
        (("get_weather", {"city": 'a "b" {c} 😀 </tool_call>'}),),
    ),
    Example(
        "hermes",
        '<tool_call>[{"name": "clock", "arguments": null}, {"type": "function", "name": "clock", "id": "x", "arguments": "{}"}]'
        "</tool_call>Done.",
        "Done.",
        (NOW, NOW),
    ),
    Example(
        "hermes",
        '<tool_call>\n{"name": "clock", "arguments": {}}\n{"name": "clock"}\n</tool_call>',
        "",
        (NOW, NOW),
    ),
    Example(
        "json",
        'Yes.\n\n<tool_call>\n{"name": "get_weather", "parameters": {"city": "line\nbreak"}}\n</tool_call>\nafter',
        "Yes.\nafter",
        (("get_weather", {"city": "line\nbreak"}),),
    ),
    # Without tags: alone, in a code block, in a list; only where nothing was said before, and only in just this form.
    Example("hermes", '{"name": "get_weather", "arguments": {"city": "London"}}', "", (LONDON,)),
    Example(
        "json",
        ' {\n  "name": "get_weather",\n  "arguments": {\n    "city": "London"\n  }\n}\n{"name": "clock", "arguments": {}}\nSo.',
        "So.",
        (LONDON, NOW),
    ),
    Example(
        "hermes",
        '<think>Hm.</think>\n\n```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "London"\n  }\n}\n```\n',
        "",
        (LONDON,),
        "Hm.",
    ),
    Example(
        "hermes",
        '```json\n{"name": "clock", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "London"}}\n```Done.',
        "Done.",
        (NOW, LONDON),
    ),
    Example(
        "hermes",
        '[\n  {"name": "clock", "arguments": {}},\n  {"name": "get_weather", "arguments": {"city": "London"}}\n]',
        "",
        (NOW, LONDON),
    ),
    *(
        Example(dialect, raw, raw, ())
        for dialect in ("hermes", "json")
        for raw in (
            '{"name": "Ann", "arguments": {}}',
            '{"name": "clock"}',
            '{"name": "clock", "age": 3, "arguments": {}}',
            '{"arguments": {}, "name": "clock"}',
            '{"name": "clo',
            '{"city": "London"}',
            '[1, {"name": "clock", "arguments": {}}]',
            '```json\n{"name": "Ann", "age": 3}\n```',
            '```json\n{"name": "clock", "argu',
            '```python\nprint({"name": "clock", "arguments": {}})\n```',
            "``",
            'See: {"name": "clock", "arguments": {}}',
            'See:\n```json\n{"name": "clock", "arguments": {}}\n```',
        )
    ),
    Example("llama3", '{\n"type": "function", "name": "clock", "parameters": {}}', "", (NOW,)),
    Example(
        "llama3",
        '{"type": "x", "name": "clock", "parameters": {}}',
        '{"type": "x", "name": "clock", "parameters": {}}',
        (),
    ),
    Example(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "London"}}; {"name": "clock", "parameters": {}}',
        "",
        (LONDON, NOW),
    ),
    Example("llama3", '\n<|python_tag|>{"type": "function", "name": "clock", "parameters": {}}', "", (NOW,)),
    Example(
        "llama3", 'It is {"name": "clock", "parameters": {}}', 'It is {"name": "clock", "parameters": {}}', ()
    ),
    Example("llama3", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', ()),
    Example(
        "mistral",
        'Hm. [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "London"}, "id": "abcdefghi"}, '
        '{"name": "clock", "arguments": {}}]',
        "Hm.",
        (LONDON, NOW),
    ),
    Example(
        "mistral-args",
        'Hm.[TOOL_CALLS]get_weather[ARGS]{"city": "London"}[TOOL_CALLS]clock[CALL_ID]abcdefghi[ARGS]{}',
        "Hm.",
        (LONDON, NOW),
    ),
    Example(
        "gemma4",
        'call it: <|tool_call>call:get_weather{city:<|"|>Lon"don\n<|"|>,days:3,detail:{a:[true,null,<|"|>x<|"|>],b:{}},'
        'hint:null,any:"q"}<tool_call|><|tool_call>call:clock{}<tool_call|>',
        "call it:",
        (
            (
                "get_weather",
                {
                    "city": 'Lon"don\n',
                    "days": 3,
                    "detail": {"a": [True, None, "x"], "b": {}},
                    "hint": None,
                    "any": "q",
                },
            ),
            NOW,
        ),
    ),
    Example(
        "qwen3-coder",
        'I will.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nLine "1"\n\n</function>\n</parameter>\n'
        '<parameter=days>\n3\n</parameter>\n<parameter=detail>\n{"a": [1]}\n</parameter>\n<parameter=hint>\nNone\n'
        '</parameter>\n<parameter=any>\nTrue\n</parameter>\n<parameter=units>\n"C"\n</parameter>\n'
        "<parameter=other>\nfree text\n</parameter>\n</function>\n</tool_call>\n<function=clock>\n</function>",
        "I will.",
        (
            (
                "get_weather",
                {
                    "city": 'Line "1"\n\n</function>',
                    "days": 3,
                    "detail": {"a": [1]},
                    "hint": None,
                    "any": True,
                    "units": '"C"',
                    "other": "free text",
                },
            ),
            NOW,
        ),
    ),
    Example(
        "deepseek",
        "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "London"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok.",
        (LONDON, NOW),
    ),
    Example(
        "deepseek-v31",
        'Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "London"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok.",
        (LONDON, NOW),
    ),
    Example("hermes", "<think>\nHm, what now?\n</think>\n\nHello.\n", "Hello.\n", (), "Hm, what now?"),
    Example(
        "hermes",
        '<think>I call <tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call> and so</think>\n\n',
        "",
        (NOW,),
        "I calland so",
    ),
    Example("hermes", "\n text, then <think> is text", "\n text, then <think> is text", ()),
    Example(
        "hermes",
        'a <tool_call> b <tool_call>{"name": "no", "arguments": {}}</tool_call> <tool_call>\n{"name": "clock"',
        'a <tool_call> b <tool_call>{"name": "no", "arguments": {}}</tool_call> <tool_call>\n{"name": "clock"',
        (),
    ),
)


@dataclass
class Found:
    """What a reader found, pieces joined."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    kinds: tuple[str, ...] = ()


def reader_of(
    dialect: str | None,
    *,
    reasoning: ReasoningFormat | None = THINK,
    opened: bool = False,
    tools: Sequence[ToolSpec] = TOOLS,
) -> ChannelReader:
    return ChannelReader(
        reasoning=reasoning,
        opened=opened,
        dialect=None if dialect is None else TOOL_DIALECTS[dialect],
        tools=tools,
    )


def read(reader: ChannelReader, pieces: Iterable[str]) -> Found:
    found: list[Piece] = []
    for piece in pieces:
        found += reader.feed(piece)
    found += reader.finish()
    return joined(found)


def joined(pieces: Iterable[Piece]) -> Found:
    result = Found()
    for piece in pieces:
        if isinstance(piece, Words):
            result.text += piece.text
        elif isinstance(piece, Thought):
            result.thought += piece.text
        elif isinstance(piece, CallOpened):
            result.calls += ((piece.name, ""),)
        elif isinstance(piece, CallArguments):
            name, arguments = result.calls[-1]
            result.calls = (*result.calls[:-1], (name, arguments + piece.text))
        kind = type(piece).__name__
        if kind == "CallOpened" or result.kinds[-1:] != (kind,):
            result.kinds += (kind,)
    return result


def cut(text: str, sizes: Iterable[int]) -> list[str]:
    """The text in pieces of these sizes, and the rest."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(text[start : start + size])
        start += size
    return [*pieces, text[start:]]
