"""Tools of a Responses request: the functions that are offered to the model, and which of them it may or must call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from stretto.conversation.messages import ToolChoice, ToolSpec
from stretto.errors import InvalidRequest
from stretto.schemas import shown

Mode = Literal["auto", "none", "required"]

_FUNCTIONS_ONLY = "Only functions can be offered to the model: tools that run on a server, and those with free text for arguments, cannot."


@dataclass(frozen=True, slots=True)
class FunctionNames:
    """Functions by the names that the model knows them by, and by those of the wire: a name, and the namespace it is in, if any.

    The model knows a function by its own name, or by namespace and name with two underscores between where there are
    several of that name.
    """

    wire: Mapping[str, tuple[str, str | None]]

    def offered(self, name: str, namespace: str | None) -> str:
        """What the model calls a function of the wire; one that is not offered (any more) has the name it would have alone."""
        joined = name if namespace is None else f"{namespace}__{name}"
        return next((known for known in (joined, name) if self.wire.get(known) == (name, namespace)), name)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request offers.

    Attributes:
        specs: the functions.
        names: see FunctionNames.
        kept: the tools of the request without those that are not offered, as they were sent.
    """

    specs: tuple[ToolSpec, ...]
    names: FunctionNames
    kept: tuple[Mapping[str, Any], ...]


def parse_tools(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Read tools that fit the schema.

    Functions and namespaces of functions are offered. Other tools are left out where there are functions beside them: agents list what
    some server might have, and do without.

    Raises:
        InvalidRequest: ``unsupported_value`` when there are tools, and none of them can be offered; ``invalid_value`` when two functions
            have one name.
    """
    functions: list[tuple[Mapping[str, Any], str | None, str]] = []
    kept: list[Mapping[str, Any]] = []
    for index, tool in enumerate(tools):
        found = list(_functions(tool, f"tools[{index}]"))
        if tool["type"] == "namespace":
            tool = {**tool, "tools": [function for function, _, _ in found]}
        if found:
            kept.append(tool)
        functions += found
    if tools and not functions:
        raise InvalidRequest(
            f"'tools[0].type' is {shown(tools[0]['type'])}. {_FUNCTIONS_ONLY}",
            code="unsupported_value",
            param="tools[0].type",
            remedy="Leave the tool out, or offer a function that does its work.",
        )
    alike = Counter(function["name"] for function, _, _ in functions)
    wire: dict[str, tuple[str, str | None]] = {}
    specs = []
    for function, namespace, path in functions:
        name = function["name"]
        known = name if alike[name] == 1 or namespace is None else f"{namespace}__{name}"
        if known in wire:
            raise InvalidRequest(
                f"'{path}.name' is {shown(name)}, as is that of another function.",
                param=f"{path}.name",
                remedy="Give each function a name of its own.",
            )
        wire[known] = name, namespace
        specs.append(
            ToolSpec(
                known,
                function.get("description"),
                function.get("parameters") or {},
                strict=function.get("strict") or False,
                param=f"{path}.parameters",
            )
        )
    return Tools(tuple(specs), FunctionNames(wire), tuple(kept))


def parse_tool_choice(choice: str | Mapping[str, Any], names: FunctionNames) -> ToolChoice:
    """Read which functions the model may or must call.

    Raises:
        InvalidRequest: ``invalid_value`` or ``unsupported_value``, with the path of what is wrong.
    """
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise InvalidRequest(
                f'\'tool_choice\' is {shown(choice)}; it must be "auto", "none", "required" or an object.',
                param="tool_choice",
            )
        parsed = ToolChoice(cast("Mode", choice))
    elif choice.get("type") == "function":
        parsed = ToolChoice("required", (_named(choice, "tool_choice", names),))
    elif choice.get("type") == "allowed_tools":
        entries = choice.get("tools") or ()
        allowed = tuple(
            _named(entry, f"tool_choice.tools[{index}]", names)
            for index, entry in enumerate(entries)
            if entry["type"] == "function"
        )
        if not allowed:
            raise InvalidRequest(
                f"'tool_choice.tools' names no function. {_FUNCTIONS_ONLY}",
                code="unsupported_value",
                param="tool_choice.tools",
            )
        mode = choice.get("mode", "auto")
        parsed = ToolChoice("required" if mode == "required" else "auto", tuple(dict.fromkeys(allowed)))
    else:
        raise InvalidRequest(
            f"'tool_choice.type' is {shown(choice.get('type'))}. {_FUNCTIONS_ONLY}",
            code="unsupported_value",
            param="tool_choice.type",
            remedy='Send "auto", or name a function.',
        )
    if parsed.mode == "required" and not names.wire:
        raise InvalidRequest(
            "'tool_choice' asks for a call, and there are no functions in 'tools'.",
            param="tool_choice",
            remedy="Send the functions with it.",
        )
    return parsed


def _functions(
    tool: Mapping[str, Any], path: str, namespace: str | None = None
) -> Iterator[tuple[Mapping[str, Any], str | None, str]]:
    """The functions of a tool, with their namespace and path."""
    if tool["type"] == "function":
        yield tool, namespace, path
    elif tool["type"] == "namespace" and namespace is None:
        for index, inner in enumerate(tool["tools"]):
            yield from _functions(inner, f"{path}.tools[{index}]", tool["name"])


def _named(entry: Mapping[str, Any], path: str, names: FunctionNames) -> str:
    name, namespace = entry.get("name"), entry.get("namespace")
    if isinstance(name, str):
        known = names.offered(name, namespace)
        if known in names.wire:
            return known
    raise InvalidRequest(
        f"'{path}.name' is {shown(name)}; no function of that name is in 'tools'.",
        param=f"{path}.name",
    )
