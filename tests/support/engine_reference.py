"""Sampling in plain Python, word by word as ``SamplingParams`` says it: slow, and independent of the sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto.conversation.messages import SamplingParams


def adjusted(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> list[float]:
    """Logits after bias and penalties."""
    values = [float(value) for value in logits]
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in set(prompt) | set(answer):
        if values[token] > 0:
            values[token] /= params.repetition_penalty
        else:
            values[token] *= params.repetition_penalty
    for token in set(answer):
        values[token] -= params.presence_penalty + params.frequency_penalty * list(answer).count(token)
    return values


def distribution(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int] = (), answer: Sequence[int] = ()
) -> dict[int, float]:
    """Probability of each token that may be drawn."""
    values = adjusted(logits, params, prompt, answer)
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if params.temperature == 0:
        return {ranked[0]: 1.0}
    peak = values[ranked[0]]
    weight = {token: math.exp((values[token] - peak) / params.temperature) for token in ranked}
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        total = math.fsum(weight[token] for token in ranked)
        kept: list[int] = []
        reached = 0.0
        for token in ranked:
            if reached >= params.top_p * total:
                break
            kept.append(token)
            reached += weight[token]
        ranked = kept
    ranked = [token for token in ranked if weight[token] >= params.min_p]
    total = math.fsum(weight[token] for token in ranked)
    return {token: weight[token] / total for token in ranked}


def logprobs(logits: Sequence[float]) -> list[float]:
    """Log-softmax."""
    peak = max(logits)
    total = peak + math.log(math.fsum(math.exp(value - peak) for value in logits))
    return [value - total for value in logits]
