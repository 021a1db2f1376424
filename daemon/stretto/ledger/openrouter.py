"""A model as OpenRouter wants its providers to list it: https://openrouter.ai/docs/guides/community/for-providers.

There is a flat format, which existing integrations use, and schema version 2.4, in which each modality has its own limits and prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stretto.ledger.money import format_usd
from stretto.ledger.provider import Offer
from stretto.schemas import schema

SCHEMA_VERSION = "2.4"

_CHAT_SCHEMA = "openai-chat-request"
# What OpenRouter has names for, in its order; what of it is served follows from the schema of requests.
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_a",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "seed",
    "max_tokens",
    "logit_bias",
)
# A feature, and the request's field that it needs.
_FEATURES = (
    ("json_mode", "response_format"),
    ("structured_outputs", "response_format"),
    ("logprobs", "logprobs"),
)
_CAPABILITIES = ("tools", "reasoning")
_LARGEST_EXACT = 2**53 - 1


class ModelFacts(Protocol):
    """What the daemon knows of the model that it serves."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def max_output_tokens(self) -> int: ...
    @property
    def capabilities(self) -> tuple[str, ...]: ...


def flat_fields(offer: Offer, model: ModelFacts) -> dict[str, object]:
    """The fields of the flat format that an entry of ``/v1/models`` has beside its own."""
    about, prices = offer.about, offer.prices
    return {
        "name": about.get("name", model.id),
        "hugging_face_id": about.get("hugging_face_id", ""),
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "quantization": about.get("quantization"),
        "context_length": _context(offer, model),
        "max_output_length": _output(offer, model),
        "pricing": {
            "prompt": format_usd(prices.prompt, 0),
            "completion": format_usd(prices.completion, 0),
            "image": "0",
            "request": format_usd(prices.request, 0),
            "input_cache_read": format_usd(prices.cached, 0),
        },
        "supported_sampling_parameters": [name for name in _SAMPLING if name in _served()],
        "supported_features": _features(offer, model),
        **_same(about, "description", "capacity_tpm"),
        **_operation(about),
    }


def current_document(offer: Offer, model: ModelFacts) -> dict[str, object]:
    """The whole entry in schema version 2.4. What costs nothing has no price there."""
    about, prices = offer.about, offer.prices
    reading: list[dict[str, object]] = []
    if prices.prompt:
        reading.append(_price("prompt", "token", prices.prompt))
        if prices.cached != prices.prompt:
            # Requests need not ask for it: whatever begins like earlier text is cheaper.
            reading.append({**_price("cached_prompt", "token", prices.cached), "implicit": True})
    capacity = about.get("capacity_tpm")
    limits = [{"type": "prompt", "unit": "token", "per": "minute", "value": capacity}] if capacity else []
    writing = [_price("completion", "token", prices.completion)] if prices.completion else []
    asking = [_price("request", "request", prices.request)] if prices.request else []
    return {
        "schema_version": SCHEMA_VERSION,
        "id": model.id,
        "name": about.get("name", model.id),
        "created": model.created,
        "quantization": about.get("quantization"),
        **_same(about, "hugging_face_id", "description"),
        "input_modalities": [
            {
                "type": "text",
                "supported_inputs": {
                    "max_context_length": {"value": _context(offer, model), "unit": "token"}
                },
                **_unless_empty("pricing", reading),
                **_unless_empty("capacity", limits),
            }
        ],
        "output_modalities": [
            {
                "type": "text",
                "max_length": {"value": _output(offer, model), "unit": "token"},
                "streaming": True,
                "supported_parameters": _parameters(offer, model),
                **_unless_empty("pricing", writing),
            }
        ],
        **_unless_empty("pricing", asking),
        **_operation(about),
    }


def _context(offer: Offer, model: ModelFacts) -> int:
    return int(offer.about.get("context_length", model.context_tokens))


def _output(offer: Offer, model: ModelFacts) -> int:
    return min(int(offer.about.get("max_output_length", model.max_output_tokens)), _context(offer, model))


def _served() -> Mapping[str, Any]:
    """The fields of a chat request that make a difference."""
    fields: Mapping[str, Any] = schema(_CHAT_SCHEMA)["properties"]
    return {name: field for name, field in fields.items() if "x-stretto" not in field}


def _features(offer: Offer, model: ModelFacts) -> list[str]:
    named = offer.about.get("supported_features")
    if named is not None:
        return list(named)
    able = [name for name in _CAPABILITIES if name in model.capabilities]
    return able + [feature for feature, field in _FEATURES if field in _served()]


def _parameters(offer: Offer, model: ModelFacts) -> dict[str, object]:
    served = _served()
    found = {name: _descriptor(served[name]) for name in _SAMPLING if name in served}
    found["max_tokens"] = {"type": "integer", "min": 1, "max": _output(offer, model), "unit": "token"}
    found |= {feature: {"type": "boolean"} for feature in _features(offer, model)}
    return dict(found)


def _descriptor(field: Mapping[str, Any]) -> dict[str, object]:
    """What a field of the request's schema allows, in OpenRouter's grammar; an open end has no limit there."""
    kind = field.get("type")
    if kind in ("number", "integer"):
        limits = {"min": field.get("minimum"), "max": field.get("maximum")}
        kept = {
            name: limit
            for name, limit in limits.items()
            if limit is not None and abs(limit) <= _LARGEST_EXACT
        }
        return {"type": "range" if kind == "number" else "integer", **kept}
    if "items" in field:
        return {"type": "array", "max_items": field["maxItems"]}
    return {"type": "unknown"}


def _price(kind: str, unit: str, pico: int) -> dict[str, object]:
    return {"type": kind, "unit": unit, "cost_usd": format_usd(pico, 0)}


def _operation(about: Mapping[str, Any]) -> dict[str, object]:
    return _same(
        about, "deprecation_date", "is_ready", "is_free", "discount_to_user", "openrouter", "datacenters"
    )


def _same(about: Mapping[str, Any], *names: str) -> dict[str, object]:
    return {name: about[name] for name in names if name in about}


def _unless_empty(name: str, entries: list[dict[str, object]]) -> dict[str, object]:
    return {name: entries} if entries else {}
