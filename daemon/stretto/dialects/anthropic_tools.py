"""Tools of a Messages request, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.conversation.messages import ToolChoice, ToolSpec
from stretto.errors import InvalidRequest
from stretto.schemas import shown


def parse_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """The tools, which fit the schema.

    Raises:
        InvalidRequest: ``unsupported_value`` for one that the server would have to run or to know; ``invalid_value`` for a name that is
            there twice.
    """
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            raise InvalidRequest(
                f"'tools[{index}].type' is {shown(tool['type'])}; only tools of your own can be offered.",
                code="unsupported_value",
                param=f"tools[{index}].type",
                remedy='Describe it with an input_schema, as a tool of type "custom", or leave it out.',
            )
        if tool["name"] in specs:
            raise InvalidRequest(
                f"'tools[{index}].name' is {shown(tool['name'])}, as is that of another tool.",
                param=f"tools[{index}].name",
            )
        specs[tool["name"]] = ToolSpec(
            name=tool["name"],
            description=tool.get("description"),
            parameters=tool["input_schema"],
            strict=bool(tool.get("strict")),
            param=f"tools[{index}].input_schema",
        )
    return tuple(specs.values())


def parse_choice(choice: Mapping[str, Any], tools: Sequence[ToolSpec]) -> ToolChoice:
    """The choice, of the tools that are offered.

    Raises:
        InvalidRequest: ``invalid_value``: a tool must be called, and there is none, or none of that name.
    """
    kind = choice["type"]
    if kind == "none":
        return ToolChoice("none")
    if kind == "auto":
        return ToolChoice("auto")
    if not tools:
        raise InvalidRequest(
            f"'tool_choice.type' is {shown(kind)}, but there are no tools.", param="tool_choice.type"
        )
    if kind == "any":
        return ToolChoice("required")
    if choice["name"] not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"'tool_choice.name' is {shown(choice['name'])}; none of the tools has that name.",
            param="tool_choice.name",
        )
    return ToolChoice("required", (choice["name"],))
