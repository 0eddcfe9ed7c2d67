"""The process of the command: it hears signals before it imports anything large, and ends at once."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

from reshard_executors.command.codes import FAILED, INTERRUPTED, PROGRAM, TERMINATED, Terminated

EARLY: Final = {
    signal.SIGINT: (INTERRUPTED, "interrupted"),
    signal.SIGTERM: (TERMINATED, "ended by SIGTERM"),
}
"""What a signal means, and what is said of it, before there is a stage of work to name."""


def start() -> NoReturn:
    """Run the command of this process, and end it.

    The end is at once: threads of torch's backends may still wait for ranks that are gone, and Python would
    wait for some of them and be aborted by others.
    """
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is to be ignored
    for number in EARLY if hears else (signal.SIGTERM,):
        signal.signal(number, _end_early)
    try:
        from reshard_executors.command.main import main  # noqa: PLC0415 - takes its time

        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main()
    except (KeyboardInterrupt, Terminated) as stop:  # one more, while the first was being told of
        code = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
    except BaseException:  # noqa: BLE001 - a fault of this program, shown as Python shows it
        sys.excepthook(*sys.exc_info())
        code = FAILED
    for number in EARLY:
        signal.signal(number, signal.SIG_IGN)
    belongings = sys.modules.get("reshard_executors.belongings")
    if belongings is not None and code in {INTERRUPTED, TERMINATED}:  # made since the signal came
        belongings.leave_all(f"it was {EARLY[signal.SIGINT if code == INTERRUPTED else signal.SIGTERM][1]}")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


def _end_early(number: int, _frame: FrameType | None) -> None:
    """End the process from within whatever it imports, which might take an exception for its own."""
    code, text = EARLY[signal.Signals(number)]
    with suppress(OSError):
        os.write(2, f"{PROGRAM}: {text}\n".encode())
    os._exit(code)
