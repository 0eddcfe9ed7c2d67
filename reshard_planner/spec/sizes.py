"""Sizes in bytes as text: 256MiB, 4KB, 100."""

from __future__ import annotations

import re
from decimal import Decimal

from reshard_planner.errors import SpecError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d{1,25}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*")


def parse_nbytes(value: int | str, path: str) -> int:
    """Number of bytes of an integer or a text such as ``256MiB``.

    Raises:
        SpecError: naming ``path`` if the text is not a size.

    >>> parse_nbytes("4KiB", "options.staging")
    4096
    """
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].upper() not in _UNITS:
        raise SpecError(f"{path} is {value!r}; expected a number of bytes such as 268435456 or '256MiB'")
    return int(Decimal(match[1]) * _UNITS[match[2].upper()])
