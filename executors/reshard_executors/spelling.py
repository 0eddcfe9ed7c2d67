"""Spelling: numbers with units, and lists of ranks and names, as messages and reports have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

SHOWN: Final = 4
"""Entries of a list that a sentence has room for."""

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL: Final = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def spell_nbytes(nbytes: float) -> str:
    """A number of bytes in powers of 1024, with three digits or more.

    >>> spell_nbytes(0), spell_nbytes(1000), spell_nbytes(1536), spell_nbytes(264241152)
    ('0 B', '1000 B', '1.5 KiB', '252 MiB')
    """
    value, unit = float(nbytes), 0
    while unit + 1 < len(_BINARY) and round(value) >= 1024:
        value, unit = value / 1024, unit + 1
    return f"{_digits(value)} {_BINARY[unit]}"


def spell_s(time_s: float) -> str:
    """A time in seconds with three digits.

    >>> spell_s(0.0119), spell_s(0)
    ('11.9 ms', '0 s')
    """
    if not time_s:
        return "0 s"
    scale, unit = next((pair for pair in _SECONDS if round(time_s / pair[0], 2) >= 1), _SECONDS[-1])
    return f"{_digits(time_s / scale)} {unit}"


def spell_rate(bytes_per_s: float) -> str:
    """A rate in powers of 1000, as datasheets give it.

    >>> spell_rate(50e9), spell_rate(12_400_000)
    ('50 GB/s', '12.4 MB/s')
    """
    scale, unit = next((pair for pair in _DECIMAL if bytes_per_s >= pair[0]), (1.0, "B/s"))
    return f"{_digits(bytes_per_s / scale)} {unit}"


def spell_count(count: int, noun: str) -> str:
    """A count with its noun.

    >>> spell_count(1, "rank"), spell_count(4096, "rank")
    ('1 rank', '4,096 ranks')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def spell_ranks(ranks: Iterable[int], limit: int = SHOWN) -> str:
    """A set of ranks, of many the first few ranges.

    >>> spell_ranks([3]), spell_ranks([0, 1, 2, 7]), spell_ranks(range(0, 20, 2))
    ('rank 3', 'ranks 0-2 and 7', 'ranks 0, 2, 4, 6 and 6 more')
    """
    found = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in found:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    hidden = sum(last - first + 1 for first, last in runs[limit:])
    return f"rank{'s' * (len(found) != 1)} {_joined(words[:limit], hidden)}"


def spell_ranks_have(ranks: Iterable[int], limit: int = SHOWN) -> str:
    """A set of ranks, as the beginning of a sentence on what they have done.

    >>> spell_ranks_have([3]), spell_ranks_have([0, 1])
    ('rank 3 has', 'ranks 0-1 have')
    """
    found = set(ranks)
    return f"{spell_ranks(found, limit)} {'has' if len(found) == 1 else 'have'}"


def spell_names(names: Sequence[str], limit: int = SHOWN) -> str:
    """A list of names or other words, of many the first few.

    >>> spell_names(["a", "b", "c"]), spell_names(list("abcdefg")), spell_names([])
    ('a, b and c', 'a, b, c, d and 3 more', 'none')
    """
    return _joined(names[:limit], max(0, len(names) - limit))


def _joined(words: Sequence[str], hidden: int) -> str:
    """Words with commas and an "and", the last of which may say how many are left out."""
    said = [*words, f"{hidden} more"] if hidden else list(words)
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1]))) if said else "none"


def _digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
