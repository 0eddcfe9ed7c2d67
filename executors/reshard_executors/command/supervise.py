"""Working in a thread, so that signals are heard while torch waits for other ranks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

from reshard_executors.command.exits import INTERRUPTED, TERMINATED, CommandError, Terminated
from reshard_executors.command.output import Progress
from reshard_executors.lane import Lane
from reshard_planner.errors import ReshardError

TICK_S: Final = 0.2

REASON_WAIT_S: Final = 0.5
"""How long a signal waits for what may have caused it: launchers end all ranks soon after one has failed."""

T = TypeVar("T")


@contextmanager
def hearing_sigterm() -> Iterator[None]:
    """Make SIGTERM raise :class:`Terminated` in the main thread, as Ctrl-C raises KeyboardInterrupt."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread, which alone hears signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def supervise(work: Callable[[], T], progress: Progress, *, speaks: bool = True) -> T:
    """Do something in another thread, and wait for it.

    A wait inside of torch hears no signals. After one of them this returns at once, with the other thread
    still at work: the process must end then.

    Args:
        work: what to do.
        progress: told of the time that passes.
        speaks: whether this process tells of a signal, which most often comes to all of them; one that knows
            what had gone wrong before does in any case.

    Raises:
        CommandError: after Ctrl-C or SIGTERM, with the error that the work has ended with meanwhile, if any.
    """
    lane = Lane("reshard command")
    ticket = lane.ask(work)
    lane.close()
    try:
        while not ticket.done(TICK_S):
            progress.tick()
    except (KeyboardInterrupt, Terminated) as stop:
        interrupted = isinstance(stop, KeyboardInterrupt)
        text = ("interrupted" if interrupted else "ended by SIGTERM") + f" at: {progress.stage}"
        if ticket.done(REASON_WAIT_S):
            try:
                ticket.result()
            except (ReshardError, CommandError) as error:
                text, speaks = f"{text}; before that: {error}", True
        raise CommandError(INTERRUPTED if interrupted else TERMINATED, text, speaks=speaks) from None
    return ticket.result()
