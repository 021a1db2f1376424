"""JSON values that no sane client sends, and good ones with something in them replaced."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**39), 10**39),
    st.integers(-3, 25),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(
        [
            "text",
            "user",
            "assistant",
            "tool",
            "function",
            "none",
            "c1",
            "{}",
            "tool_use",
            "tool_result",
            "thinking",
            "document",
            "toolu_1",
        ]
    ),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "text", "role", "content", "id", "function", "name", "arguments", "7", "input", "source", "data"]) | st.text(max_size=4),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """A good value with something in it replaced by anything."""
    options: list[st.SearchStrategy[Any]] = [ANYTHING, st.just(value)]
    if isinstance(value, dict):
        options += [st.fixed_dictionaries({k: mutated(v) for k, v in value.items()})]
    if isinstance(value, list):
        options += [st.tuples(*(mutated(v) for v in value)).map(list)]
    return st.one_of(options)
