"""Printing results, errors and progress; many processes do so at once, so that lines are written whole."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, TextIO

from reshard_planner.errors import InputError

PROGRAM: Final = "reshard-executors"

MAX_ERROR: Final = 1000
"""Most characters of an error that are shown, since errors repeat values of any length."""

PATIENCE_S: Final = 10.0
"""How long a stage lasts before a log hears of it; then each time that it has taken twice as long."""

_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_text(text: str) -> None:
    """Print lines to stdout."""
    _print(sys.stdout, text)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    print_text(json.dumps(value, indent=2, allow_nan=False))


def print_error(text: str) -> None:
    """Print one line to stderr, after the name of the program."""
    line = " ".join(text.split())
    shown = line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]} ..."
    _print(sys.stderr, f"{PROGRAM}: {shown}")


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the command was started with the stream closed
        return
    encoding = stream.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(shown if shown.endswith("\n") else shown + "\n")
    stream.flush()


class Progress:
    """Tells on stderr which stage a command is in: at once on a terminal, in a log only if it takes long.

    Attributes:
        stage: the stage.
    """

    def __init__(self, *, shown: bool) -> None:
        """Begin.

        Args:
            shown: whether this process tells anything.
        """
        self._stream = sys.stderr if shown else None
        self._live = self._stream is not None and self._stream.isatty()
        self.stage = ""
        self._since = time.monotonic()
        self._next_s = PATIENCE_S

    def say(self, stage: str) -> None:
        """A stage begins."""
        self.stage, self._since, self._next_s = stage, time.monotonic(), PATIENCE_S
        if self._live and self._stream is not None:
            self._stream.write(f"\r\x1b[K{stage} ...")
            self._stream.flush()

    def tick(self) -> None:
        """Time passes."""
        passed_s = time.monotonic() - self._since
        if self._stream is None or self._live or not self.stage or passed_s < self._next_s:
            return
        self._next_s *= 2
        print_error(f"{self.stage}: {passed_s:.0f} s so far")

    def end(self) -> None:
        """Clear the line on the terminal."""
        self.stage = ""
        if self._live and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def align(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells as lines, the first columns to the left and the others to the right.

    >>> print(align([("a", "12"), ("bc", "3")]))
    a   12
    bc   3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def spell_nbytes(nbytes: int) -> str:
    """A number of bytes in powers of 1024.

    >>> spell_nbytes(0), spell_nbytes(1536), spell_nbytes(264241152)
    ('0 B', '1.5 KiB', '252 MiB')
    """
    value, unit = float(nbytes), 0
    while unit + 1 < len(_BINARY) and value >= 1000:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_BINARY[unit]}"


def spell_s(time_s: float) -> str:
    """A time in seconds with three digits.

    >>> spell_s(0.0119), spell_s(0)
    ('11.9 ms', '0 s')
    """
    if not time_s:
        return "0 s"
    scale, unit = next((pair for pair in _SECONDS if time_s >= pair[0]), _SECONDS[-1])
    return f"{time_s / scale:.3g} {unit}"


def spell_ranks(ranks: Sequence[int], limit: int = 8) -> str:
    """Ranks in words, the first few of many.

    >>> spell_ranks([3]), spell_ranks([1, 2]), spell_ranks(range(9), 2)
    ('rank 3', 'ranks 1, 2', 'ranks 0, 1 and 7 more')
    """
    shown = ", ".join(map(str, ranks[:limit]))
    more = f" and {len(ranks) - limit} more" if len(ranks) > limit else ""
    return f"rank{'s' * (len(ranks) != 1)} {shown}{more}"


def parse_ranks(text: str, option: str) -> tuple[int, ...]:
    """A list of ranks with ranges, in the order given.

    Args:
        text: such as ``4-7,0-3``.
        option: for errors.

    Raises:
        InputError: if it is something else.

    >>> parse_ranks("4-6,0", "--ranks")
    (4, 5, 6, 0)
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = [end for end in (first, last if dash else first) if end.isascii() and end.isdecimal()]
        if len(ends) != 2 or max(map(len, ends)) > 7 or int(ends[0]) > int(ends[1]):
            raise InputError(f"{option} is {text!r}; expected ranks and ranges of them, such as 4-7,0-3")
        ranks.extend(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(ranks)
