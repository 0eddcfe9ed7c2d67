"""Sets of numbers as short text: ``0-3,8`` stands for 0, 1, 2, 3 and 8."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_LIMIT = 2**20


def parse_ints(text: str) -> list[int]:
    """Expand ranges in the order given.

    Raises:
        ValueError: if a part is not ``a`` or ``a-b`` with a <= b, or the numbers are too large.

    >>> parse_ints("0-3,8")
    [0, 1, 2, 3, 8]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is not a list of numbers and ranges such as '0-3,8'")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"range {part.strip()!r} runs backwards")
        if last >= _LIMIT:
            raise ValueError(f"{last} is too large; expected below {_LIMIT}")
        numbers.extend(range(first, last + 1))
        if len(numbers) > _LIMIT:
            raise ValueError(f"{text!r} lists too many numbers")
    return numbers


def format_ints(numbers: Iterable[int]) -> str:
    """Write numbers in the order given, runs as ranges.

    >>> format_ints([0, 1, 2, 3, 8])
    '0-3,8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in runs)
