"""How much KV memory to allocate, and how long a context that gives."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.base import KVPlan, MemoryReport, ModelSpec
from stretto.engine.config import EngineConfig, EngineFacts
from stretto.errors import ContextLengthExceeded, InvalidRequest, StartupError

FREE_MEMORY_SHARE = 0.6
"""Of the memory that is free after loading; the rest is for activations, other programs and the page cache."""

SMALLEST_CONTEXT_TOKENS = 256
"""A context that memory alone makes shorter than this is refused at start instead of failing every request."""


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class WindowNeed:
    """What a sequence holds of a layer group that looks back a window only.

    Attributes:
        window_tokens: the window.
        reach_blocks: most blocks that the window of one position lies in.
        blocks: most that it holds at once: those of its window and of the longest step, and as many again of its window, which
            others may hold too when it goes on from known text.
    """

    window_tokens: int
    reach_blocks: int
    blocks: int


def window_need(window_tokens: int, block_tokens: int, chunk_tokens: int) -> WindowNeed:
    """For steps of so many tokens."""
    reach = blocks_for(window_tokens - 1, block_tokens) + 1
    own = blocks_for(window_tokens - 1 + chunk_tokens, block_tokens) + 1
    return WindowNeed(window_tokens, reach, own + reach)


def plan_kv(spec: ModelSpec, memory: MemoryReport, config: EngineConfig) -> EngineFacts:
    """Choose the KV memory and the context.

    The budget is the setting, or a share of what is free; more than ``max_batch`` sequences of the longest context could use
    is not allocated. Each layer group gets as many blocks as every other. The context is the smallest of the model's, the
    setting and what one sequence can get from the budget.

    Raises:
        StartupError: ``out_of_memory``, with the figures, when a set context does not fit the budget or the budget is too
            small for any.
    """
    budget_bytes = config.kv_cache_bytes
    if budget_bytes is None:
        budget_bytes = int(memory.free_bytes * FREE_MEMORY_SHARE)
    block_bytes = spec.kv_bytes_per_token * config.block_tokens
    most = config.max_batch * blocks_for(_wanted_tokens(spec, config), config.block_tokens)
    affordable = _affordable(spec, config, budget_bytes, most)
    affordable_tokens = affordable * config.block_tokens
    wanted_tokens = _wanted_tokens(spec, config)
    least_tokens = wanted_tokens if config.max_context_tokens else min(wanted_tokens, SMALLEST_CONTEXT_TOKENS)
    if affordable_tokens < least_tokens:
        raise StartupError(
            f"A context of {least_tokens} tokens needs {blocks_for(least_tokens, config.block_tokens) * block_bytes} bytes of "
            f"KV memory, and the budget is {budget_bytes} bytes ({_origin(memory, config)}), enough for "
            f"{affordable_tokens} tokens.",
            code="out_of_memory",
            remedy="Set a shorter context, or a larger KV budget, or free some memory.",
        )
    context_tokens = min(wanted_tokens, affordable_tokens)
    blocks = min(affordable, config.max_batch * blocks_for(context_tokens, config.block_tokens))
    plan = KVPlan(config.block_tokens, _group_blocks(spec, config, blocks))
    return EngineFacts(spec, plan, context_tokens, _plan_bytes(spec, plan))


def _wanted_tokens(spec: ModelSpec, config: EngineConfig) -> int:
    return min(spec.context_tokens, config.max_context_tokens or spec.context_tokens)


def _affordable(spec: ModelSpec, config: EngineConfig, budget_bytes: int, most: int) -> int:
    """Blocks that a group without a window can have; more than ``most`` are not looked for where windows make it cheaper."""
    if all(group.window_tokens is None for group in spec.layer_groups):
        return budget_bytes // (spec.kv_bytes_per_token * config.block_tokens)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        plan = KVPlan(config.block_tokens, _group_blocks(spec, config, middle))
        if _plan_bytes(spec, plan) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _group_blocks(spec: ModelSpec, config: EngineConfig, blocks: int) -> tuple[int, ...]:
    """For each layer group, where one without a window has so many."""
    found = []
    for group in spec.layer_groups:
        if group.window_tokens is None:
            found.append(blocks)
            continue
        need = window_need(group.window_tokens, config.block_tokens, config.prefill_chunk_tokens)
        found.append(min(blocks, config.max_batch * (need.blocks + need.reach_blocks)))
    return tuple(found)


def _plan_bytes(spec: ModelSpec, plan: KVPlan) -> int:
    return plan.block_tokens * sum(
        blocks * group.kv_bytes_per_token
        for blocks, group in zip(plan.blocks, spec.layer_groups, strict=True)
    )


def check_fits(prompt_tokens: int, max_tokens: int, facts: EngineFacts, config: EngineConfig) -> None:
    """Refuse what can never run, with the figures.

    Raises:
        ContextLengthExceeded: longer than the model's or the set context.
        InvalidRequest: ``kv_budget_exceeded``: within that context, but the KV memory cannot hold it.
    """
    total_tokens = prompt_tokens + max_tokens
    if total_tokens <= facts.max_context_tokens:
        return
    asked = f"{prompt_tokens} prompt tokens and up to {max_tokens} answer tokens make {total_tokens}"
    limit_tokens = min(facts.spec.context_tokens, config.max_context_tokens or facts.spec.context_tokens)
    if total_tokens > limit_tokens:
        raise ContextLengthExceeded(
            f"{asked}, and the context is {facts.max_context_tokens} tokens.",
            limit_tokens=facts.max_context_tokens,
            prompt_tokens=prompt_tokens,
            remedy="Shorten the prompt or max_tokens.",
        )
    raise InvalidRequest(
        f"{asked}, which need {total_tokens * facts.spec.kv_bytes_per_token} bytes of KV memory; there are {facts.kv_bytes} "
        f"bytes, enough for {facts.max_context_tokens} tokens.",
        code="kv_budget_exceeded",
        remedy="Shorten the prompt or max_tokens, or give the daemon a larger KV budget.",
    )


def _origin(memory: MemoryReport, config: EngineConfig) -> str:
    if config.kv_cache_bytes is not None:
        return "as set"
    return f"{FREE_MEMORY_SHARE:.0%} of the {memory.free_bytes} bytes that are free"
