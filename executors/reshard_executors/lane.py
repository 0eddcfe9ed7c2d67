"""A lane: one thread that works for a Resharder, so that its callers can go on, or be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from reshard_executors.threads import Helper

T = TypeVar("T")


class Ticket(Generic[T]):
    """Something that a lane has been asked to do."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it; called by the lane, once."""
        work, self._work = self._work, None
        try:
            if work is not None:
                self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
        finally:
            del work
            self._done.set()

    def done(self, patience_s: float) -> bool:
        """Whether it is done, or will be within some seconds, which are waited for."""
        return self._done.wait(patience_s)

    def result(self) -> T:
        """What came of it, once it is done: its result, or the error that it raised."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # or its frames would keep it, and it them
        return self._result  # type: ignore[return-value]  # None only where T allows it


class Lane:
    """One thread that does what it is asked to, in order."""

    def __init__(self, name: str) -> None:
        """Start the thread.

        Raises:
            RuntimeError: if the system allows no more threads.
        """
        self._asked: SimpleQueue[Ticket[object] | None] = SimpleQueue()
        try:
            Helper(name, partial(_serve, self._asked))
        except BaseException:  # an interrupt, when it may have started
            self.close()
            raise

    def ask(self, work: Callable[[], T]) -> Ticket[T]:
        """Have something done after everything that was asked before."""
        ticket = Ticket(work)
        self._asked.put(ticket)  # type: ignore[arg-type]  # the queue does not look at results
        return ticket

    def close(self) -> None:
        """Let the thread end once it has done everything; does not wait for that."""
        self._asked.put(None)


def within(patience_s: float, work: Callable[[], T]) -> T:
    """Do something that may never end, in a thread that is left to it then.

    Args:
        patience_s: how long to wait for it, in seconds.
        work: what to do.

    Raises:
        TimeoutError: if it has not ended then.
    """
    lane = Lane("reshard once")
    try:
        ticket = lane.ask(work)
    finally:
        lane.close()
    if not ticket.done(patience_s):
        raise TimeoutError
    return ticket.result()


def _serve(asked: SimpleQueue[Ticket[object] | None]) -> None:
    while True:
        ticket = asked.get()
        if ticket is None:
            return
        ticket.run()
        del ticket
