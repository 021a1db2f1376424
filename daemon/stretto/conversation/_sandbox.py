"""The Jinja environment that chat templates run in.

Jinja's immutable sandbox with what ``transformers`` adds to it, so that a template renders as its authors saw it render; and
with a budget (see ``_budget``) that is looked at in every loop, call, filter, operator and output. To have a place to look from,
a parsed template is rewritten a little before it is compiled: each loop body begins with a tick, ``~`` and the literals of
lists and dicts become filters, and literal text is written like any other value.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from stretto.conversation import _budget as budgets
from stretto.conversation import _growth as growth
from stretto.conversation._budget import Budget, expanded_size

BUDGET_KEY = "stretto budget"
"""Where a rendering's Budget is in the template's context; no template can name it."""

_TICK = "stretto tick"
_CONCAT = "stretto concat"
_LITERAL = "stretto literal"

_FILTERS = (
    "abs", "attr", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "trim",
    "truncate", "unique", "upper", "wordcount",
)  # fmt: skip


class TemplateRefusal(TemplateError):
    """The template called ``raise_exception``: it refuses this conversation, in its own words."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the module's text. One serves any number of renderings at once; what changes is in each one's Budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, max_chars: int, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            finalize=_count_output,
        )
        self._max_chars = max_chars
        plain = ImmutableSandboxedEnvironment()
        self.filters = {name: _guarded_filter(plain, name, max_chars) for name in _FILTERS}
        self.filters["tojson"] = _guarded_tojson(max_chars)
        self.filters[_TICK] = _tick
        self.filters[_CONCAT] = _guarded_concat(max_chars)
        self.filters[_LITERAL] = _guarded_literal(max_chars)
        self.tests = {name: _guarded_test(plain, name) for name in plain.tests}

        def strftime_now(form: str) -> str:
            return now().strftime(form)

        self.globals = {
            "range": self.globals["range"],
            "cycler": Cycler,
            "joiner": Joiner,
            "dict": _ChatDict(),
            "namespace": _ChatNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }
        self._callables = tuple(self.globals.values())

    def compile_chat(self, source: str) -> Any:
        """Parse, rewrite and compile a template. Raises what Jinja and Python's compiler raise."""
        tree = _Rewriter(self).visit(self.parse(source))
        return self.from_string(tree)

    def is_safe_callable(self, obj: Any) -> bool:
        if any(obj is known for known in self._callables):
            return True
        if isinstance(obj, types.MethodType):
            return isinstance(obj.__self__, (LoopContext, Cycler, _ChatDict))
        return isinstance(obj, (Macro, LoopContext, Undefined, Cycler, Joiner, growth.BoundedFormat))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget(__context).tick()
        limit = __self._max_chars
        checked = growth.check_method(__obj, args, kwargs, limit)
        if checked is not None:
            # Through the context, which takes out the arguments that compiled templates add to every call.
            result = __context.call(__obj, *checked[0], **checked[1])
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        expanded_size(result, limit)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _budget(context).tick()
        if operator == "*":
            budgets.check_product(left, right, self._max_chars)
        elif operator == "**":
            budgets.check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            growth.check_percent(left, right, self._max_chars)
        result = super().call_binop(context, operator, left, right)
        expanded_size(result, self._max_chars)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if not isinstance(value, (types.MethodType, types.BuiltinMethodType)):
            return None
        text = value.__self__
        if not isinstance(text, str) or value.__name__ not in ("format", "format_map"):
            return None
        return growth.BoundedFormat(
            self, str(text), from_map=value.__name__ == "format_map", limit=self._max_chars
        )


class _Rewriter(NodeTransformer):
    """Puts the budget's looks into a parsed template."""

    def __init__(self, environment: ChatEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        tick = self._filter(_TICK, nodes.Const(None), node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno, environment=self._environment))
        if isinstance(node.test, nodes.Expr):
            node.test = self._filter(_TICK, node.test, node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        pieces = nodes.Tuple(node.nodes, "load", lineno=node.lineno, environment=self._environment)
        return self._filter(_CONCAT, pieces, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return self._literal(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._literal(node, [pair.value for pair in node.items])

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno, environment=self._environment)

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Expr:
        if all(isinstance(item, nodes.Const) for item in items):
            return node
        return self._filter(_LITERAL, node, node.lineno)

    def _filter(self, name: str, node: nodes.Expr, lineno: int) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=lineno, environment=self._environment)


class _GenerationTag(Extension):
    """``{% generation %}``: marks what the assistant wrote, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _ChatNamespace(Namespace):
    """``namespace()``, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # so that `namespace(self=…)` works, as it does in Jinja
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        # Without its values: they may hold this namespace, or each other, and grow without end when written out.
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have an attribute {name!r}")


class _ChatDict:
    """``dict()`` and ``dict.fromkeys()``, and nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _budget(context: Context) -> Budget:
    budget = context.parent[BUDGET_KEY]
    assert isinstance(budget, Budget)
    return budget


@pass_context
def _count_output(context: Context, value: Any) -> Any:
    _budget(context).write(value)
    return value


@pass_context
def _tick(context: Context, value: Any) -> Any:
    _budget(context).tick()
    return value


def _guarded_concat(limit: int) -> Callable[..., Any]:
    @pass_context
    def concat(context: Context, pieces: tuple[Any, ...]) -> str:
        _budget(context).tick()
        expanded_size(pieces, limit)
        return "".join(map(str, pieces))

    return concat


def _guarded_literal(limit: int) -> Callable[..., Any]:
    @pass_context
    def literal(context: Context, value: Any) -> Any:
        _budget(context).tick()
        expanded_size(value, limit)
        return value

    return literal


def _guarded_tojson(limit: int) -> Callable[..., Any]:
    @pass_context
    def tojson(
        context: Context,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON. Jinja's own filter escapes for HTML, which models were not trained on."""
        budget = _budget(context)
        budget.tick()
        expanded_size(value, limit)
        if indent is not None:
            budgets.check_size(indent if isinstance(indent, int) else len(indent), 64)
        if separators is not None:
            budgets.check_size(sum(map(len, separators)), 64)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if indent is None and separators is None:
            return encoder.encode(value)
        pieces, size = [], 0
        for piece in budget.iterate(encoder.iterencode(value)):
            size += len(piece)
            budgets.check_size(size, limit)
            pieces.append(piece)
        return "".join(pieces)

    return tojson


def _guarded_test(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., Any]:
    @pass_context
    def test(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget(context).tick()
        return plain.call_test(name, value, args, kwargs, context=context)

    return test


def _guarded_filter(plain: ImmutableSandboxedEnvironment, name: str, limit: int) -> Callable[..., Any]:
    check = _FILTER_CHECKS.get(name)

    @pass_context
    def filter_(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.tick()
        if check is not None:
            value = check(value, args, kwargs, limit)
        result = plain.call_filter(name, value, args, kwargs, context=context)
        if isinstance(result, types.GeneratorType):
            return budget.iterate(result)
        expanded_size(result, limit)
        return result

    return filter_


def _argument(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str, default: Any
) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _check_join(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    if isinstance(value, Undefined):
        return value
    items = list(value)
    growth.checked_join(str(_argument(args, kwargs, 0, "d", "")), items, limit)
    return items


def _check_replace(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    old, new = _argument(args, kwargs, 0, "old", ""), _argument(args, kwargs, 1, "new", "")
    expanded_size(value, limit)
    growth.checked_replace(str(value), str(old), str(new), limit)
    return value


def _check_indent(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    width = _argument(args, kwargs, 0, "width", 4)
    size = width if isinstance(width, int) else len(str(width))
    expanded_size(value, limit)
    budgets.check_size((str(value).count("\n") + 1) * max(size, 0), limit)
    return value


def _check_center(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    width = _argument(args, kwargs, 0, "width", 80)
    budgets.check_size(width if isinstance(width, int) else 0, limit)
    return value


def _check_format(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    growth.check_percent(str(value), dict(kwargs) or args, limit)
    return value


def _check_round(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    precision = _argument(args, kwargs, 0, "precision", 0)
    budgets.check_size(abs(precision) if isinstance(precision, int) else 0, 30)
    return value


def _check_sum(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int) -> Any:
    if not isinstance(_argument(args, kwargs, 1, "start", 0), (int, float)):
        raise SecurityError("templates may sum numbers only")
    return value


_FILTER_CHECKS: Mapping[str, Callable[[Any, tuple[Any, ...], Mapping[str, Any], int], Any]] = {
    "center": _check_center,
    "format": _check_format,
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "sum": _check_sum,
}
