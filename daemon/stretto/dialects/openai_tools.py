"""What a chat request says about functions and about reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.conversation.messages import Reasoning, ToolChoice, ToolSpec
from stretto.errors import InvalidRequest
from stretto.schemas import shown

_SWITCHES = ("enable_thinking", "thinking")


def parse_tools(fields: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The functions of a request whose fields have the right types.

    Raises:
        InvalidRequest: ``unsupported_value`` for another kind of tool; ``invalid_value`` when two have one name.
    """
    tools: dict[str, ToolSpec] = {}
    for index, tool in enumerate(fields.get("tools", ())):
        _check_kind(tool, f"tools[{index}]")
        function = tool["function"]
        name = function["name"]
        if name in tools:
            raise InvalidRequest(
                f"'tools[{index}].function.name' is {shown(name)}, as is that of another function.",
                param=f"tools[{index}].function.name",
                remedy="Give each function a name of its own.",
            )
        tools[name] = ToolSpec(
            name,
            function.get("description"),
            function.get("parameters") or {},
            bool(function.get("strict")),
            f"tools[{index}].function.parameters",
        )
    return tuple(tools.values())


def parse_tool_choice(fields: Mapping[str, Any], tools: Sequence[ToolSpec]) -> ToolChoice:
    """Which of the functions may or must be called.

    Raises:
        InvalidRequest: ``unsupported_value`` for another kind of choice; ``invalid_value`` when it names what is not offered, or there
            is nothing to call.
    """
    choice = fields.get("tool_choice", "auto")
    if isinstance(choice, str):
        if choice == "required":
            _require(tools, "tool_choice", choice)
        return ToolChoice(choice)  # type: ignore[arg-type]  # the schema lists the same words
    if choice["type"] == "function":
        name = choice["function"]["name"]
        _require(tools, "tool_choice.function.name", name)
        return ToolChoice("required", (name,))
    if choice["type"] == "allowed_tools":
        allowed = choice["allowed_tools"]
        names = []
        for index, tool in enumerate(allowed["tools"]):
            where = f"tool_choice.allowed_tools.tools[{index}]"
            _check_kind(tool, where)
            _require(tools, f"{where}.function.name", tool["function"]["name"])
            names.append(tool["function"]["name"])
        return ToolChoice(allowed["mode"], tuple(names))
    raise InvalidRequest(
        f'\'tool_choice.type\' is {shown(choice["type"])}; it must be "function" or "allowed_tools".',
        code="unsupported_value",
        param="tool_choice.type",
    )


def parse_reasoning(fields: Mapping[str, Any]) -> Reasoning:
    """How much the model is to think. A switch among the template's variables counts here too."""
    variables = fields.get("chat_template_kwargs", {})
    switched = [variables[name] for name in _SWITCHES if isinstance(variables.get(name), bool)]
    budget = fields.get("thinking_budget")
    return Reasoning(
        enabled=switched[0] if switched else None,
        effort=fields.get("reasoning_effort"),
        budget_tokens=None if budget is None else int(budget),
    )


def _check_kind(tool: Mapping[str, Any], where: str) -> None:
    if tool["type"] != "function":
        raise InvalidRequest(
            f"'{where}.type' is {shown(tool['type'])}; only functions can be called.",
            code="unsupported_value",
            param=f"{where}.type",
            remedy='Describe it as a function: {"type": "function", "function": {"name": …, "parameters": …}}.',
        )


def _require(tools: Sequence[ToolSpec], param: str, name: str) -> None:
    """Refuse a choice that nothing in ``tools`` can honour; ``name`` is a function's, or ``required``."""
    if not tools:
        raise InvalidRequest(
            f"'{param}' is {shown(name)}, but 'tools' offers no function.",
            param=param,
            remedy="Send tools with it.",
        )
    if param != "tool_choice" and all(tool.name != name for tool in tools):
        raise InvalidRequest(
            f"'{param}' is {shown(name)}; no function in 'tools' has that name.", param=param
        )
