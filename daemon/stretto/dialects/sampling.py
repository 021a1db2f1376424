"""The fields about sampling, which have the same names in every dialect that has them; read once their types are known to be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.conversation.messages import SamplingParams


def parse_sampling(fields: Mapping[str, Any]) -> SamplingParams:
    """How tokens are chosen; what is absent has the default of SamplingParams."""
    plain = SamplingParams()
    seed = fields.get("seed")
    return SamplingParams(
        temperature=float(fields.get("temperature", plain.temperature)),
        top_k=int(fields.get("top_k", plain.top_k)),
        top_p=float(fields.get("top_p", plain.top_p)),
        min_p=float(fields.get("min_p", plain.min_p)),
        repetition_penalty=float(fields.get("repetition_penalty", plain.repetition_penalty)),
        presence_penalty=float(fields.get("presence_penalty", plain.presence_penalty)),
        frequency_penalty=float(fields.get("frequency_penalty", plain.frequency_penalty)),
        logit_bias={int(token): float(bias) for token, bias in fields.get("logit_bias", {}).items()},
        seed=None if seed is None else int(seed),
    )
