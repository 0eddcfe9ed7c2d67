"""Printing results, errors and progress; many processes do so at once, so that lines are written whole."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

from reshard_executors.command.codes import PROGRAM

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
        PrintError: if that fails, or the process was started with stdout closed.
    """
    if sys.stdout is None:
        raise PrintError(OSError(errno.EBADF, os.strerror(errno.EBADF)))
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
    if sys.stderr is None:
        return
    try:
        _print(sys.stderr, f"{PROGRAM}: {shown}")
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Keep the interpreter from complaining when it flushes a stream that nobody can write to."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(shown if shown.endswith("\n") else shown + "\n")
    stream.flush()


class Progress:
    """Tells on stderr which stage a command is in: on a terminal always, in a log only if it takes long."""

    def __init__(self, *, shown: bool) -> None:
        """Begin.

        Args:
            shown: whether this process tells anything.
        """
        self._stream = sys.stderr if shown else None
        self._live = self._stream is not None and self._stream.isatty()
        self._stage = self._detail = ""
        self._since = time.monotonic()
        self._next_s = PATIENCE_S
        self._lock = threading.Lock()  # one thread works, and another one sees the time pass

    @property
    def stage(self) -> str:
        """The stage, and how far it is; empty outside of all."""
        return f"{self._stage}, {self._detail}" if self._detail else self._stage

    def say(self, stage: str, detail: str = "") -> None:
        """A stage begins, or goes on.

        Args:
            stage: its name.
            detail: how far it is, such as ``repeat 3 of 5``.
        """
        with self._lock:
            begins = stage != self._stage
            self._stage, self._detail = stage, detail
            if begins:
                self._since, self._next_s = time.monotonic(), PATIENCE_S
                self._show(f"{self.stage} ...")

    def tick(self) -> None:
        """Time passes."""
        with self._lock:
            passed_s = time.monotonic() - self._since
            if self._stream is None or not self._stage or (passed_s < self._next_s and not self._live):
                return
            text = f"{self.stage}: {passed_s:.0f} s so far"
            if self._live:
                self._show(text)
            else:
                self._next_s *= 2
                print_error(text)

    def end(self) -> None:
        """Clear the line on the terminal."""
        with self._lock:
            self._stage = self._detail = ""
            self._show("")

    def stop(self) -> None:
        """Clear the line, and tell nothing any more, whatever is still said."""
        self.end()
        with self._lock:
            self._stream, self._live = None, False

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
