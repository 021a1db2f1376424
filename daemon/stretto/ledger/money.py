"""Money: whole picodollars (1e-12 USD) inside, decimal strings of US dollars outside; never a float."""

from __future__ import annotations

import re

PICO = 10**12
"""Picodollars of a dollar: a price of $0.0028 a million tokens is 2800 of them a token."""

MAX_AMOUNT_PICO = 1_000_000 * PICO
"""Most that one entry may move, and most that a key may hold."""

MAX_FUNDS_PICO = 9 * MAX_AMOUNT_PICO
"""Most that all keys together can be given over the life of a store: SQLite's integers end at 9.2 million dollars."""

AMOUNT_PATTERN = r"-?[0-9]{1,7}(\.[0-9]{1,12})?"


def parse_usd(text: str) -> int:
    """Picodollars of a decimal string such as ``25``, ``-1.50`` or ``0.0000002``.

    Raises:
        ValueError: not such a string, or it has more than 12 decimals or 7 digits before the point.
    """
    if re.fullmatch(AMOUNT_PATTERN, text) is None:
        raise ValueError(text)
    whole, _, fraction = text.removeprefix("-").partition(".")
    pico = int(whole) * PICO + int(fraction.ljust(12, "0"))
    return -pico if text.startswith("-") else pico


def format_usd(pico: int, decimals: int = 2) -> str:
    """The exact decimal string, with at least so many decimals: ``25.00``, ``-0.0000123``."""
    whole, fraction = divmod(abs(pico), PICO)
    digits = f"{fraction:012}".rstrip("0").ljust(decimals, "0")
    return f"{'-' if pico < 0 else ''}{whole}{'.' if digits else ''}{digits}"
