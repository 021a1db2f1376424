"""The provider file: prices, the keys that the ledger begins with, and the admin token. Read once, at start, and wholly checked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import SettingsError
from stretto.ledger.keys import HASHED, hint_of, same_secret, written_digest
from stretto.ledger.money import format_usd, parse_usd
from stretto.ledger.prices import Prices
from stretto.schemas import Violation, find_violation

SCHEMA_NAME = "provider"
MAX_BYTES = 4 << 20
MAX_TOKEN_PRICE = "0.001"
"""Dollars; a thousand a million tokens. What is above is a price for a million tokens, written where one for a token belongs."""
MAX_REQUEST_PRICE = "100"

_KEY_FIELDS = ("label", "balance", "plan")


@dataclass(frozen=True, slots=True)
class Offer:
    """A model as it is offered.

    Attributes:
        id: its name in the file.
        prices: of the list.
        plans: other prices, by the name of the plan.
        about: everything else that the file says of it, as it stands there.
    """

    id: str
    prices: Prices
    plans: Mapping[str, Prices]
    about: Mapping[str, Any]

    def prices_of(self, plan: str | None) -> Prices:
        """The prices of a plan, or of the list where the model has none of that plan."""
        return self.prices if plan is None else self.plans.get(plan, self.prices)

    def require_room(self, context_tokens: int) -> None:
        """Refuse to offer more context, or longer answers, than there is.

        Raises:
            SettingsError: naming both numbers.
        """
        for field, most in (("context_length", context_tokens), ("max_output_length", context_tokens - 1)):
            if self.about.get(field, 0) > most:
                raise SettingsError(
                    f"provider_config: models.{self.id}.{field} is {self.about[field]}, and this daemon has {most} tokens.",
                    param="provider_config",
                    remedy="Lower it, leave it out, or raise --max-context.",
                )


@dataclass(frozen=True, slots=True)
class GivenKey:
    """A key that the file names. ``balance`` (picodollars) is given when the ledger sees it for the first time."""

    digest: bytes
    hint: str
    label: str
    balance: int
    plan: str | None


@dataclass(frozen=True, slots=True)
class Provider:
    """The file, checked."""

    path: Path
    admin_digest: bytes
    offers: Mapping[str, Offer]
    keys: Sequence[GivenKey]

    def is_admin(self, token: bytes) -> bool:
        """Whether this is the admin token; takes the same time wherever they differ."""
        return same_secret(token, self.admin_digest)

    def offer_of(self, names: Sequence[str]) -> Offer:
        """The offer for the model that has these names, the first of which is its id.

        Raises:
            SettingsError: the file has none, or two of them.
        """
        found = self.find_offer(names)
        if found is None:
            raise _refusal(
                self.path,
                f"models has no prices for the model that is served, '{names[0]}'; it has {_listed(self.offers)}",
            )
        return found

    def find_offer(self, names: Sequence[str]) -> Offer | None:
        """The same for a model that need not be offered.

        Raises:
            SettingsError: the file has two of them.
        """
        found = [self.offers[name] for name in dict.fromkeys(names) if name in self.offers]
        if len(found) > 1:
            both = " and ".join(f"'{offer.id}'" for offer in found)
            raise _refusal(self.path, f"models has {both}, which are names of one model")
        return found[0] if found else None


def load_provider(path: Path) -> Provider:
    """Read and check the file.

    Raises:
        SettingsError: it cannot be read, or the first thing that is wrong with it. No secret is in the message.
    """
    document = _document(path)
    violation = find_violation(SCHEMA_NAME, document)
    if violation is not None:
        raise _refusal(path, _described(violation))
    offers = {name: _offer(path, name, model) for name, model in document["models"].items()}
    admin = written_digest(document["admin_token"])
    keys: dict[bytes, GivenKey] = {}
    for text, entry in document.get("keys", {}).items():
        key = _given_key(text, entry)
        if key.digest in keys:
            raise _refusal(path, "keys has one key twice, by itself and by its hash")
        if key.digest == admin:
            raise _refusal(
                path, "admin_token is one of the keys; whoever has that key would administer all of them"
            )
        if key.plan is not None and not any(key.plan in offer.plans for offer in offers.values()):
            raise _refusal(path, f"an entry of keys has the plan '{key.plan}', which no model has")
        keys[key.digest] = key
    return Provider(path, admin, offers, tuple(keys.values()))


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise _refusal(path, f"is longer than {MAX_BYTES} bytes")
    try:
        return json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        # The error's own words may quote the file: its place is enough.
        place = (
            f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "it"
        )
        raise _refusal(
            path, f"is not valid JSON in UTF-8, without a name that comes twice ({place})"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _described(violation: Violation) -> str:
    """What is wrong, without a secret: the names in ``keys`` are keys."""
    if not violation.path.startswith(("keys", "admin_token")):
        return violation.sentence
    if violation.path.startswith("admin_token"):
        return (
            "'admin_token' is missing; it is required."
            if violation.value is None
            else f"'admin_token' must be 24 to 512 visible ASCII characters, or {HASHED} and 64 hex digits."
        )
    field = violation.path.rpartition(".")[2]
    if field in _KEY_FIELDS:
        return f"'{field}' of an entry of 'keys' must be {violation.allowed}."
    if violation.keyword == "propertyNames":
        return f"A name in 'keys' must be a key of 24 to 512 visible ASCII characters, or {HASHED} and 64 hex digits."
    return f"An entry of 'keys' must be an object with no more than {', '.join(_KEY_FIELDS)}."


def _offer(path: Path, name: str, model: Mapping[str, Any]) -> Offer:
    prices = _prices(path, f"models.{name}.pricing", model["pricing"])
    plans = {
        plan: _prices(path, f"models.{name}.plans.{plan}", pricing)
        for plan, pricing in model.get("plans", {}).items()
    }
    if model.get("is_free") and not prices.free:
        raise _refusal(path, f"models.{name} is_free, but its prices are not all 0")
    about = {field: value for field, value in model.items() if field not in ("pricing", "plans")}
    return Offer(name, prices, plans, about)


def _prices(path: Path, where: str, pricing: Mapping[str, str]) -> Prices:
    amounts = {field: parse_usd(text) for field, text in pricing.items()}
    for field, amount in amounts.items():
        limit = MAX_REQUEST_PRICE if field == "request" else MAX_TOKEN_PRICE
        if amount > parse_usd(limit):
            hint = "" if field == "request" else "; prices are for one token, not for a million"
            raise _refusal(path, f"{where}.{field} is {pricing[field]}, more than ${limit}{hint}")
    cached = amounts.get("input_cache_read", amounts["prompt"])
    if cached > amounts["prompt"]:
        raise _refusal(
            path,
            f"{where}.input_cache_read is ${format_usd(cached)}, more than the ${format_usd(amounts['prompt'])} of prompt",
        )
    return Prices(amounts["prompt"], cached, amounts["completion"], amounts.get("request", 0))


def _given_key(text: str, entry: Mapping[str, str]) -> GivenKey:
    return GivenKey(
        digest=written_digest(text),
        hint="" if text.startswith(HASHED) else hint_of(text),
        label=entry.get("label", ""),
        balance=parse_usd(entry.get("balance", "0")),
        plan=entry.get("plan"),
    )


def _refusal(path: Path, what: str) -> SettingsError:
    return SettingsError(f"provider_config: {path}: {what.rstrip('.')}.", param="provider_config")


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(f"'{name}'" for name in shown)
