"""Printing results, errors and progress; many processes do so at once, so that lines are written whole."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

PROGRAM: Final = "reshard-executors"

MAX_ERROR: Final = 1000
"""Most characters of an error that are shown, since errors repeat values of any length."""

PATIENCE_S: Final = 10.0
"""How long a stage lasts before a log hears of it; then each time that it has taken twice as long."""


class PrintError(Exception):
    """A result cannot be printed; nothing can be any more.

    Attributes:
        unwanted: whether the reason is that nobody reads any more.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"cannot print the result: {reason.strerror}")
        self.unwanted = isinstance(reason, BrokenPipeError)


def print_text(text: str) -> None:
    """Print lines to stdout.

    Raises:
        PrintError: if that fails.
    """
    try:
        _print(sys.stdout, text)
    except OSError as error:
        _silence(sys.stdout)
        raise PrintError(error) from None


def print_json(value: Any) -> None:
    """Print one JSON document to stdout; see :func:`print_text`."""
    print_text(json.dumps(value, indent=2, allow_nan=False))


def print_error(text: str) -> None:
    """Print one line to stderr, after the name of the program, if anybody can read it."""
    line = " ".join(text.split())
    shown = line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]} ..."
    try:
        _print(sys.stderr, f"{PROGRAM}: {shown}")
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Keep the interpreter from complaining when it flushes a stream that nobody can write to."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
        self._show(f"{stage} ...")

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
        self._show("")

    def _show(self, text: str) -> None:
        """Have the line on the terminal say this."""
        if self._live and self._stream is not None:
            with suppress(OSError):  # the terminal is gone
                self._stream.write(f"\r\x1b[K{text}")
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
