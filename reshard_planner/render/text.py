"""Numbers with units, sets of ranks and names, as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reshard_planner.intset import format_ints

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def format_nbytes(nbytes: int) -> str:
    """A number of bytes with three digits or more, in powers of 1024.

    >>> format_nbytes(264241152)
    '252 MiB'
    """
    value = float(nbytes)
    unit = 0
    while unit + 1 < len(_BINARY) and round(value) >= 1024:
        value /= 1024
        unit += 1
    return f"{_digits(value)} {_BINARY[unit]}"


def format_s(time_s: float) -> str:
    """A time in seconds with three digits.

    >>> format_s(0.0000152)
    '15.2 µs'
    """
    if not time_s:
        return "0 s"
    scale, unit = next((pair for pair in _SECONDS if round(time_s / pair[0], 2) >= 1), _SECONDS[-1])
    return f"{_digits(time_s / scale)} {unit}"


def format_rate(bytes_per_s: int) -> str:
    """A rate in powers of 1000, as datasheets give it.

    >>> format_rate(400_000_000_000)
    '400 GB/s'
    """
    scale, unit = next((pair for pair in _DECIMAL if bytes_per_s >= pair[0]), (1.0, "B/s"))
    return f"{_digits(bytes_per_s / scale)} {unit}"


def format_count(count: int, noun: str) -> str:
    """A count with its noun.

    >>> format_count(4096, "transfer")
    '4,096 transfers'
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines, the first column to the left and the others to the right.

    >>> print(align([("a", "12"), ("bc", "3")]))
    a   12
    bc   3
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def format_shape(shape: Sequence[int]) -> str:
    """A shape in elements; ``scalar`` for a 0-d tensor."""
    return " x ".join(map(str, shape)) or "scalar"


def format_ranks(ranks: Iterable[int], limit: int = 24) -> str:
    """Numbers as ranges, with the middle left out where that is longer than ``limit`` characters."""
    parts = format_ints(ranks).split(",")
    if len(",".join(parts)) <= limit:
        return ",".join(parts)
    while len(parts) > 3 and len(",".join((*parts[:-1], "...", parts[-1]))) > limit:
        parts.pop(-2)
    return ",".join((*parts[:-1], "...", parts[-1]))


def plain(name: str, limit: int = 60) -> str:
    """A name on one line: characters that cannot be shown as escapes, the middle of a long one left out."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)
    if len(shown) <= limit:
        return shown
    half = (limit - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def _digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
