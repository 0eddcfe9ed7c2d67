"""Working in a thread, so that signals are heard while torch waits for other ranks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final, TypeVar

from reshard_executors.command.codes import INTERRUPTED, TERMINATED, Terminated
from reshard_executors.command.exits import CommandError
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
        if signal.getsignal(signal.SIGTERM) is stop:  # and not ignored meanwhile
            signal.signal(signal.SIGTERM, before)


def _hear_no_more() -> None:
    """Ignore further signals: launchers send several, and what is left to do takes a few seconds."""
    with suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _no_wait(_stop: BaseException) -> float:
    return REASON_WAIT_S


def _nobody(_why: str) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Parting:
    """How a process goes that a signal ends.

    Attributes:
        speaks: whether it tells of the signal, which most often comes to all of them; one that knows what had
            gone wrong before does in any case.
        patience_s: how long it waits for what may have caused the signal, in seconds, by the signal.
        leave: tells other ranks why this one leaves; how long it has to stay then, so that they hear of it,
            in seconds.
    """

    speaks: bool = True
    patience_s: Callable[[BaseException], float] = _no_wait
    leave: Callable[[str], float] = _nobody


def supervise(work: Callable[[], T], progress: Progress, parting: Parting) -> T:
    """Do something in another thread, and wait for it.

    A wait inside of torch hears no signals. After one of them this returns at once, with the other thread
    still at work: the process must end then, and hears no further ones.

    Args:
        work: what to do.
        progress: told of the time that passes.
        parting: how to go after a signal.

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
        _hear_no_more()
        interrupted = isinstance(stop, KeyboardInterrupt)
        said = "interrupted" if interrupted else "ended by SIGTERM"
        cause, speaks = "", parting.speaks
        if ticket.done(parting.patience_s(stop)):
            try:
                return ticket.result()  # it has ended well all the same
            except (ReshardError, CommandError) as error:
                cause, speaks = f"; before that: {error}", True
        text = said + (f" at: {progress.stage}" if progress.stage else "") + cause
        stay_s = parting.leave(f"it was {said}")
        code = INTERRUPTED if interrupted else TERMINATED
        raise CommandError(code, text, speaks=speaks, stay_s=stay_s or None) from None
    return ticket.result()
