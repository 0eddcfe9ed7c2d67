"""Rates of ports as ``tc`` writes them."""

from __future__ import annotations

import re
from decimal import Decimal

from reshard_planner.errors import InputError

MIN_BYTES_PER_S = 125_000
"""Slowest rate of a port: 1 Mbit/s."""

MAX_BYTES_PER_S = 5_000_000_000
"""Fastest rate of a port, 40 Gbit/s: more than a machine's processors move."""

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)(bit|bps)", re.IGNORECASE)
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MAX_DIGITS = 30


def parse_rate(text: str, option: str) -> int:
    """Bytes per second of a text such as ``200mbit``: bits per second in ``bit``, bytes in ``bps``.

    Raises:
        InputError: naming ``option`` if the text is not a rate, or one that a port cannot be shaped to.

    >>> parse_rate("200mbit", "--nic"), parse_rate("25mbps", "--nic")
    (25000000, 25000000)
    """
    match = _RATE.fullmatch(text.strip()) if len(text) <= _MAX_DIGITS else None
    scale = None if match is None else {**_PREFIXES, **_BINARY}.get(match[2].lower())
    if match is None or scale is None:
        raise InputError(
            f"{option} is {text!r}; expected a rate as tc writes it, such as 200mbit, 1.8gbit or 25mbps"
            " (bps: bytes per second)"
        )
    bits = Decimal(match[1]) * scale * (8 if match[3].lower() == "bps" else 1)
    bytes_per_s = int(bits / 8)
    if not MIN_BYTES_PER_S <= bytes_per_s <= MAX_BYTES_PER_S:
        raise InputError(f"{option} is {text!r}; expected a rate from 1mbit to 40gbit")
    return bytes_per_s
