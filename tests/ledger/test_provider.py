"""The provider file: what it becomes, and that whatever is wrong is refused by name and without its secrets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stretto.errors import SettingsError
from stretto.ledger import Prices, load_provider
from stretto.ledger.keys import KeyRing, name_of, new_key, same_secret, written_digest
from support.ledger_books import (
    ADMIN_TOKEN,
    ALICE,
    BOB,
    PRICES,
    PRICING,
    provider_document,
    usd,
    write_provider,
)

HASH_OF_BOB = "sha256:" + hashlib.sha256(BOB.encode()).hexdigest()
EXAMPLE = Path(__file__).parents[2] / "examples" / "provider.json"


def refused(directory: Path, document: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_provider(write_provider(directory, document))
    message = str(caught.value)
    assert message.startswith(f"provider_config: {directory / 'provider.json'}: ")
    assert caught.value.param == "provider_config"
    for secret in (ALICE, BOB, ADMIN_TOKEN):
        assert secret not in message
    return message


def with_model(**fields: Any) -> dict[str, Any]:
    return provider_document(models={"echo": {"pricing": PRICING, **fields}})


def test_a_file_becomes_prices_keys_and_a_token(tmp_path: Path) -> None:
    document = provider_document(
        models={
            "echo": {"pricing": PRICING, "plans": {"partner": {"prompt": "0", "completion": "0.000001"}}}
        },
        keys={ALICE: {"label": "Alice", "balance": "12.5"}, HASH_OF_BOB: {"plan": "partner"}},
    )
    provider = load_provider(write_provider(tmp_path, document))
    offer = provider.offer_of(["served", "echo"])
    assert (offer.id, offer.prices) == ("echo", PRICES)
    assert offer.prices_of("partner") == Prices(0, 0, 10**6, 0)
    alice, bob = provider.keys
    assert (alice.digest, alice.label, alice.balance, alice.plan) == (
        hashlib.sha256(ALICE.encode()).digest(),
        "Alice",
        usd("12.5"),
        None,
    )
    assert (bob.digest, bob.label, bob.balance, bob.plan) == (
        hashlib.sha256(BOB.encode()).digest(),
        "",
        0,
        "partner",
    )
    assert (alice.hint, bob.hint) == ("…0001", "")
    assert provider.is_admin(ADMIN_TOKEN.encode())
    assert not provider.is_admin(ADMIN_TOKEN[:-1].encode())
    assert not provider.is_admin(b"")


def test_cached_tokens_cost_what_others_do_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    pricing = {"prompt": "0.000003", "completion": "0", "request": "0.01"}
    provider = load_provider(write_provider(tmp_path, with_model(pricing=pricing)))
    assert provider.offers["echo"].prices == Prices(3 * 10**6, 3 * 10**6, 0, 10**10)


def test_the_admin_token_may_be_a_hash(tmp_path: Path) -> None:
    hashed = "sha256:" + hashlib.sha256(ADMIN_TOKEN.encode()).hexdigest()
    provider = load_provider(write_provider(tmp_path, provider_document(admin_token=hashed)))
    assert provider.is_admin(ADMIN_TOKEN.encode())
    assert not provider.is_admin(hashed.encode())


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "is missing"),
        ([], "must be an object"),
        (provider_document(admin_token="short"), "'admin_token' must be 24 to 512"),
        ({"models": {"echo": {"pricing": PRICING}}}, "'admin_token' is missing"),
        (provider_document(currency="EUR"), "'currency' is \"EUR\""),
        (provider_document(models={}), "'models'"),
        (provider_document(more=1), "without more"),
        (with_model(more=1), "without more"),
        (with_model(pricing={"prompt": "0.1"}), "'models.echo.pricing.completion' is missing"),
        (
            with_model(pricing={"prompt": 0.1, "completion": "0"}),
            "'models.echo.pricing.prompt' is 0.1; it must be a string",
        ),
        (with_model(pricing={"prompt": "1e-6", "completion": "0"}), "models.echo.pricing.prompt"),
        (with_model(pricing={"prompt": "-0.1", "completion": "0"}), "models.echo.pricing.prompt"),
        (with_model(pricing={"prompt": "0.2", "completion": "0"}), "for one token, not for a million"),
        (
            with_model(pricing={"prompt": "0", "completion": "0.0010000001"}),
            "models.echo.pricing.completion is 0.0010000001",
        ),
        (with_model(pricing={"prompt": "0", "completion": "0", "request": "100.1"}), "more than $100"),
        (
            with_model(pricing={"prompt": "0.000001", "completion": "0", "input_cache_read": "0.000002"}),
            "input_cache_read is $0.000002",
        ),
        (with_model(plans={"p": {"prompt": "0.5", "completion": "0"}}), "models.echo.plans.p.prompt is 0.5"),
        (with_model(is_free=True), "is_free, but its prices"),
        (with_model(quantization="q4"), "models.echo.quantization"),
        (with_model(discount_to_user=1), "models.echo.discount_to_user"),
        (with_model(deprecation_date="tomorrow"), "models.echo.deprecation_date"),
        (with_model(datacenters=[{"country_code": "fi"}]), "models.echo.datacenters[0].country_code"),
        (provider_document(keys={"short": {}}), "A name in 'keys' must be a key of 24 to 512"),
        (provider_document(keys={ALICE + " ": {}}), "A name in 'keys' must be"),
        (provider_document(keys={ALICE: {"balance": 1}}), "'balance' of an entry of 'keys' must be"),
        (provider_document(keys={ALICE: {"balance": "-1"}}), "'balance' of an entry of 'keys' must be"),
        (provider_document(keys={ALICE: {"money": "1"}}), "no more than label, balance, plan"),
        (provider_document(keys={ALICE: 7}), "no more than label, balance, plan"),
        (provider_document(keys={ALICE: {"label": "a\nb"}}), "'label' of an entry of 'keys' must be"),
        (provider_document(keys={ALICE: {"plan": "gold"}}), "the plan 'gold', which no model has"),
        (provider_document(keys={BOB: {}, HASH_OF_BOB: {}}), "one key twice"),
        (provider_document(keys={ADMIN_TOKEN: {}}), "admin_token is one of the keys"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, document: Any, said: str) -> None:
    assert said in refused(tmp_path, document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"admin_token": "x',
        "\xff",
        '{"models": {}, "models": {}}',
        "[" * 100_000,
        f'{{"keys": {{"{ALICE}": 1,}}}}',
    ],
)
def test_what_is_no_json_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "provider.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as caught:
        load_provider(path)
    assert "is not valid JSON" in caught.value.message
    assert ALICE not in caught.value.message


def test_a_file_that_is_not_there_or_too_long(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_provider(tmp_path / "none.json")
    (tmp_path / "long.json").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(SettingsError, match="longer than"):
        load_provider(tmp_path / "long.json")


def test_the_served_model_must_have_one_price(tmp_path: Path) -> None:
    provider = load_provider(
        write_provider(
            tmp_path, provider_document(models={"a": {"pricing": PRICING}, "b": {"pricing": PRICING}})
        )
    )
    assert provider.offer_of(["b", "b", "c"]).id == "b"
    assert provider.find_offer(["c"]) is None
    with pytest.raises(SettingsError, match="no prices for the model that is served, 'c'; it has 'a', 'b'"):
        provider.offer_of(["c"])
    with pytest.raises(SettingsError, match="'b' and 'a', which are names of one model"):
        provider.offer_of(["b", "a"])


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("context_length", 100, True),
        ("context_length", 101, False),
        ("max_output_length", 99, True),
        ("max_output_length", 100, False),
    ],
)
def test_no_more_is_offered_than_there_is(tmp_path: Path, field: str, value: int, fits: bool) -> None:
    offer = load_provider(write_provider(tmp_path, with_model(**{field: value}))).offers["echo"]
    if fits:
        offer.require_room(100)
    else:
        with pytest.raises(SettingsError, match=f"models.echo.{field} is {value}"):
            offer.require_room(100)


def test_keys_are_long_unlike_and_known_by_a_name_that_tells_nothing() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("sk-stretto-") and len(key) == 54 for key in keys)
    digest = written_digest(ALICE)
    name = name_of(digest)
    assert name.startswith("key_")
    assert len(name) == 28
    assert name == name_of(written_digest("sha256:" + digest.hex()))
    assert digest.hex()[:8] not in name
    assert name.removeprefix("key_") not in hashlib.sha256(ALICE.encode()).hexdigest()
    assert same_secret(ALICE.encode(), digest)
    assert KeyRing().find(ALICE.encode()) is None


def test_the_example_is_a_provider_file() -> None:
    provider = load_provider(EXAMPLE)
    assert provider.offer_of(["smollm2"]).prices.prompt > 0
    assert json.loads(EXAMPLE.read_text())["admin_token"].startswith("replace-")
