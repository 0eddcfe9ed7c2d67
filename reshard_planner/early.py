"""Ctrl-C while the command line is imported, which takes half a second: the process ends in one sentence.

The package itself imports nearly everything, so that no ``try`` of the command can stand around it, and what
is imported might take an exception for its own. Only a process of the command is touched, not one that
imports the planner.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from itertools import pairwise
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

NAMES = ("reshard-planner", "reshard-planner.exe")
"""Of the script that installing makes."""

SAID = b"reshard-planner: interrupted\n"


def listen() -> None:
    """Hear Ctrl-C from now on, in a process of the command that does not ignore it."""
    if (
        is_command((sys.argv or [""])[0], sys.orig_argv)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _end)


def hand_over() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, which the command is ready for."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command(script: str, words: list[str]) -> bool:
    """Whether a process was started as ``reshard-planner`` or ``python -m reshard_planner``.

    Args:
        script: what runs, as in ``sys.argv[0]``; processes that the command has made have it from there.
        words: what the process was started with, as ``sys.orig_argv``.
    """
    as_script = os.path.basename(script) in NAMES and script in words  # noqa: PTH119 - imports nothing
    return as_script or ("-m", "reshard_planner") in pairwise(words)


def _end(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, SAID)
    os._exit(INTERRUPTED)
