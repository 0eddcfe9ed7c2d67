"""How sentences name values and many things."""

from __future__ import annotations

import re
from collections.abc import Sequence


def quote(text: str, most: int = 40) -> str:
    """A value in a message: of few characters, and with control characters spelled out.

    >>> quote("a name that is too long", most=12)
    "'a name th...'"
    """
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorting key by which ``n2`` comes before ``n10``."""
    parts = re.findall(r"(\d{1,18})|(\D+)", name, re.ASCII)
    return (*((0, int(number), "") if number else (1, 0, rest) for number, rest in parts), (2, 0, name))


def gigabytes(bytes_per_s: int) -> str:
    """A rate in GB/s.

    >>> gigabytes(50_000_000_000)
    '50 GB/s'
    """
    return f"{bytes_per_s / 1e9:.4g} GB/s"
