"""Prepaid credits: prices and keys from the provider file, reservations of requests, and a journal that always sums to zero."""

from stretto.ledger.accounts import Given, GivenKind, KeyView, Line
from stretto.ledger.keys import Key
from stretto.ledger.ledger import CreatedKey, Ledger
from stretto.ledger.money import format_usd, parse_usd
from stretto.ledger.openrouter import current_document, flat_fields
from stretto.ledger.prices import Prices, Used
from stretto.ledger.provider import Offer, Provider, load_provider
from stretto.ledger.reservations import Ask, Closing, Hold
from stretto.ledger.tables import SCHEMA

__all__ = [
    "SCHEMA",
    "Ask",
    "Closing",
    "CreatedKey",
    "Given",
    "GivenKind",
    "Hold",
    "Key",
    "KeyView",
    "Ledger",
    "Line",
    "Offer",
    "Prices",
    "Provider",
    "Used",
    "current_document",
    "flat_fields",
    "format_usd",
    "load_provider",
    "parse_usd",
]
