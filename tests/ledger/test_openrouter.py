"""Both listings, by the rules that OpenRouter publishes for its providers, written out here for models of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.ledger import Offer, current_document, flat_fields, format_usd, load_provider
from stretto.ledger.prices import Prices
from stretto.schemas import schema

QUANTIZATIONS = ["int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32"]
SAMPLING = [
    "temperature", "top_p", "top_k", "min_p", "top_a", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "seed",
    "max_tokens", "logit_bias",
]  # fmt: skip
FEATURES = ["tools", "json_mode", "structured_outputs", "logprobs", "web_search", "reasoning"]
PRICE = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}
EXACT = 2**53 - 1
DATE = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}(T\d{2}:00:00Z)?$"}


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


OPERATION = {
    "description": {"type": "string"},
    "hugging_face_id": {"type": "string"},
    "deprecation_date": DATE,
    "is_ready": {"type": "boolean"},
    "is_free": {"type": "boolean"},
    "discount_to_user": {"type": "number", "exclusiveMaximum": 1},
    "openrouter": closed({"slug": {"type": "string"}}),
    "datacenters": {
        "type": "array",
        "items": closed(
            {"country_code": {"type": "string", "pattern": "^[A-Z]{2}$"}}, {"region": {"type": "string"}}
        ),
    },
}
FLAT = {
    "type": "object",
    "properties": {
        **OPERATION,
        "name": {"type": "string"},
        "input_modalities": {"type": "array", "minItems": 1, "items": {"enum": ["text", "image", "file", "audio", "video"]}},
        "output_modalities": {"type": "array", "minItems": 1, "items": {"enum": ["text", "image", "embeddings"]}},
        "quantization": {"enum": [*QUANTIZATIONS, None]},
        "context_length": {"type": "integer", "minimum": 1},
        "max_output_length": {"type": "integer", "minimum": 1},
        "pricing": closed(dict.fromkeys(("prompt", "completion", "image", "request", "input_cache_read"), PRICE)),
        "supported_sampling_parameters": {"type": "array", "items": {"enum": SAMPLING}, "uniqueItems": True},
        "supported_features": {"type": "array", "items": {"enum": FEATURES}, "uniqueItems": True},
        "capacity_tpm": {"type": ["integer", "null"]},
    },
    "required": [
        "name", "hugging_face_id", "input_modalities", "output_modalities", "quantization", "context_length", "max_output_length",
        "pricing", "supported_sampling_parameters", "supported_features",
    ],
}  # fmt: skip

LIMIT = closed(
    {"value": {"type": "integer", "minimum": 1, "maximum": EXACT}},
    {"unit": {"enum": ["second", "pixel", "byte", "token", "character"]}},
)
DESCRIPTORS: dict[str, dict[str, Any]] = {
    "range": closed(
        {"type": {"const": "range"}},
        {"min": {"type": "number"}, "max": {"type": "number"}, "unit": LIMIT["properties"]["unit"]},
    ),
    "integer": closed(
        {"type": {"const": "integer"}},
        {"min": {"type": "number"}, "max": {"type": "number"}, "unit": LIMIT["properties"]["unit"]},
    ),
    "boolean": closed({"type": {"const": "boolean"}}),
    "enum": closed({"type": {"const": "enum"}, "values": {"type": "array"}}),
    "array": closed(
        {"type": {"const": "array"}}, {"max_items": {"type": "integer", "minimum": 1}, "items": {}}
    ),
    "unknown": closed({"type": {"const": "unknown"}}),
}
INPUT_UNIT = {"enum": ["token", "image", "megapixel", "second", "character"]}
CACHE = {"ttl_seconds": {"type": "integer", "minimum": 1}, "implicit": {"type": "boolean"}}
INPUT_PRICE = {
    "oneOf": [
        closed({"type": {"const": "prompt"}, "unit": INPUT_UNIT, "cost_usd": PRICE}),
        closed(
            {"type": {"enum": ["cached_prompt", "cache_write"]}, "unit": INPUT_UNIT, "cost_usd": PRICE}, CACHE
        ),
    ]
}
CAPACITY = closed(
    {
        "type": {"enum": ["prompt", "cached_prompt", "cache_write"]},
        "unit": INPUT_UNIT,
        "per": {"enum": ["minute", "hour", "day"]},
        "value": {"type": "integer", "minimum": 1, "maximum": EXACT},
    }
)
CURRENT = closed(
    {
        "schema_version": {"const": "2.4"},
        "id": {"type": "string"},
        "name": {"type": "string"},
        "input_modalities": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {"type": {"const": "text"}},
                {
                    "supported_inputs": closed({}, {"max_context_length": LIMIT, "max_prompt_length": LIMIT}),
                    "pricing": {"type": "array", "items": INPUT_PRICE},
                    "capacity": {"type": "array", "items": CAPACITY},
                },
            ),
        },
        "output_modalities": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {
                    "type": {"const": "text"},
                    "supported_parameters": {
                        "type": "object",
                        "additionalProperties": {"oneOf": list(DESCRIPTORS.values())},
                    },
                },
                {
                    "max_length": LIMIT,
                    "streaming": {"type": "boolean"},
                    "pricing": {
                        "type": "array",
                        "items": closed(
                            {
                                "type": {"enum": ["completion", "internal_reasoning"]},
                                "unit": {"enum": ["token", "request"]},
                                "cost_usd": PRICE,
                            }
                        ),
                    },
                },
            ),
        },
    },
    {
        **OPERATION,
        "created": {"type": "integer", "minimum": -EXACT, "maximum": EXACT},
        "quantization": {"enum": [*QUANTIZATIONS, None]},
        "pricing": {
            "type": "array",
            "items": closed({"type": {"const": "request"}, "unit": {"const": "request"}, "cost_usd": PRICE}),
        },
    },
)


@dataclass(frozen=True)
class Facts:
    id: str = "org/model"
    created: int = 1_700_000_000
    context_tokens: int = 8192
    max_output_tokens: int = 8191
    capabilities: tuple[str, ...] = ("chat",)


ABOUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(min_size=1, max_size=20),
        "description": st.text(max_size=20),
        "hugging_face_id": st.just("a/b"),
        "quantization": st.sampled_from([*QUANTIZATIONS, None]),
        "context_length": st.integers(1, 8192),
        "max_output_length": st.integers(1, 8191),
        "supported_features": st.lists(st.sampled_from(FEATURES), unique=True),
        "capacity_tpm": st.integers(1, 10**9),
        "discount_to_user": st.floats(-1, 0.99),
        "deprecation_date": st.sampled_from(["2027-01-31", "2027-01-31T15:00:00Z"]),
        "is_ready": st.booleans(),
        "openrouter": st.just({"slug": "a/b"}),
        "datacenters": st.just([{"country_code": "FI", "region": "hel"}]),
    },
)
PRICES = st.builds(
    lambda prompt, share, completion, request: Prices(prompt, prompt * share // 4, completion, request),
    st.integers(0, 10**9), st.integers(0, 4), st.integers(0, 10**9), st.integers(0, 10**14),
)  # fmt: skip


@given(ABOUT, PRICES, st.sampled_from([("chat",), ("chat", "tools", "reasoning")]))
def test_whatever_the_file_says_both_listings_are_valid(
    about: dict[str, Any], prices: Prices, able: tuple[str, ...]
) -> None:
    jsonschema.Draft202012Validator(
        dict(schema("provider"))["$defs"] and {"$ref": "#/$defs/model", "$defs": schema("provider")["$defs"]}
    ).validate({**about, "pricing": {"prompt": "0", "completion": "0"}})
    offer, model = Offer("echo", prices, {}, about), Facts(capabilities=able)
    flat, current = flat_fields(offer, model), current_document(offer, model)
    jsonschema.Draft202012Validator(FLAT).validate(flat)
    jsonschema.Draft202012Validator(CURRENT).validate(current)
    # Prices: the same in both, and none that is nothing in the second.
    (read,), (write,) = current["input_modalities"], current["output_modalities"]  # type: ignore[misc]
    told = {
        entry["type"]: entry["cost_usd"]
        for part in (read, write, current)
        for entry in part.get("pricing", [])
    }
    pricing: Any = flat["pricing"]
    expected = {
        "prompt": pricing["prompt"],
        "completion": pricing["completion"],
        "request": pricing["request"],
    }
    assert {name: price for name, price in told.items() if name != "cached_prompt"} == {
        name: price for name, price in expected.items() if price != "0"
    }
    if pricing["input_cache_read"] != pricing["prompt"]:
        assert told["cached_prompt"] == pricing["input_cache_read"]
    else:
        assert "cached_prompt" not in told
    assert read["supported_inputs"]["max_context_length"]["value"] == flat["context_length"]
    assert write["max_length"]["value"] == flat["max_output_length"] <= flat["context_length"]  # type: ignore[operator]
    assert all(
        price == format_usd(amount, 0)
        for price, amount in ((pricing["prompt"], prices.prompt), (pricing["request"], prices.request))
    )


def test_what_is_supported_follows_from_the_schema_of_requests() -> None:
    flat = flat_fields(Offer("m", Prices(1, 1, 1, 0), {}, {}), Facts())
    assert flat["supported_sampling_parameters"] == [name for name in SAMPLING if name != "top_a"]
    assert flat["supported_features"] == ["json_mode", "structured_outputs", "logprobs"]
    able = flat_fields(
        Offer("m", Prices(1, 1, 1, 0), {}, {}), Facts(capabilities=("chat", "tools", "reasoning"))
    )
    assert able["supported_features"] == ["tools", "reasoning", "json_mode", "structured_outputs", "logprobs"]
    parameters: Any = current_document(Offer("m", Prices(1, 1, 1, 0), {}, {}), Facts())["output_modalities"]
    found = parameters[0]["supported_parameters"]
    assert found["temperature"] == {"type": "range", "min": 0, "max": 2}
    assert found["max_tokens"] == {"type": "integer", "min": 1, "max": 8191, "unit": "token"}
    assert found["stop"]["type"] == "array"
    assert found["seed"] == {"type": "integer"}  # its ends are beyond what JSON numbers hold


@pytest.mark.parametrize("listing", [flat_fields, current_document])
def test_the_example_file_is_listed(listing: Any) -> None:
    provider = load_provider(Path(__file__).parents[2] / "examples" / "provider.json")
    document = listing(provider.offers["smollm2"], Facts())
    jsonschema.Draft202012Validator(FLAT if listing is flat_fields else CURRENT).validate(document)
    assert document["name"] == "SmolLM2 135M Instruct"
    assert "partner" not in str(document)
