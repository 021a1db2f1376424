"""DeepSeek V3 and R1 (JSON in a code block), and V3.1 (JSON alone)."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```"


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    """Both forms: in the older one ``function`` stands where the newer one has the name."""
    grouped = (yield from scanner.take(_ALL, _ONE)) == _ALL
    if grouped:
        yield from scanner.spaces()
        yield from scanner.take(_ONE)
    while True:
        yield from _read_one(scanner)
        yield from scanner.spaces()
        if not grouped:
            return
        if (yield from scanner.take(_ONE, _ALL_END)) == _ALL_END:
            scanner.end_call()
            return


def _read_one(scanner: Scanner) -> Steps[None]:
    name, _ = yield from scanner.until(_SEP)
    if name.strip() == "function":
        yield from scanner.spaces()
        name, _ = yield from scanner.until("\n")
    yield from scanner.spaces()
    fenced = yield from scanner.take(f"{_FENCE}json", "")
    yield from scanner.spaces()
    if (yield from scanner.peek()) != "{":
        raise NotACall
    scanner.open(name.strip())
    yield from scanner.arguments()
    yield from scanner.spaces()
    if fenced:
        yield from scanner.take(_FENCE)
        yield from scanner.spaces()
    yield from scanner.take(_ONE_END)
    scanner.end_call()


_FENCED = f"\n{_FENCE}json\n"

DEEPSEEK = ToolDialect(
    "deepseek",
    (_ALL, f"{_FENCE}json"),
    (_ALL, _ONE),
    Syntax(
        first=_ALL,
        before=f"{_ONE}function{_SEP}",
        middle=_FENCED,
        after=f"\n{_FENCE}{_ONE_END}",
        between="\n",
        last=_ALL_END,
    ),
    _read,
    variants=(
        Syntax(before=f"{_ONE}function{_SEP}", middle=_FENCED, after=f"\n{_FENCE}{_ONE_END}", between="\n"),
    ),
)
DEEPSEEK_V31 = ToolDialect(
    "deepseek-v31",
    (_ALL,),
    (_ALL, _ONE),
    Syntax(first=_ALL, before=_ONE, middle=_SEP, after=_ONE_END, last=_ALL_END),
    _read,
    variants=(Syntax(before=_ONE, middle=_SEP, after=_ONE_END),),
)
