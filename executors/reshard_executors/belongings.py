"""Belongings: what a private group holds, and how it is given back, also when its process ends or forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from functools import partial
from typing import Final

import torch.distributed as dist

from reshard_executors.groups import abort_group, destroy_group
from reshard_executors.lane import Lane
from reshard_executors.signs import DONE, LEFT
from reshard_executors.threads import Helper, join_helpers
from reshard_executors.watch import Watch

EXIT_S: Final = 10.0
"""How long a process that ends waits for its threads at most."""

RELEASE_S: Final = 2.0
"""How long an aborted lane may take to end before its group is left to it."""


class Belongings:
    """What one private group holds.

    Attributes:
        lane: of the group.
        group: the process group; None before it is made and after it is given back.
        backend: of the group.
        watch: of the group; None until all ranks have met.
        given_up: why this rank does not go on to meet the others, where it does not.
    """

    def __init__(self) -> None:
        """Begin with a lane."""
        self.group: dist.ProcessGroup | None = None
        self.backend = ""
        self.watch: Watch | None = None
        self.given_up: str | None = None
        self._last_sign = DONE
        self._process = os.getpid()
        self._releasing = threading.Lock()
        self.lane = Lane("reshard")
        try:
            _live.add(self)
        except BaseException:  # an interrupt
            self.lane.close()
            raise

    @property
    def foreign(self) -> bool:
        """Whether they are those of the process that this one was forked from, which goes on to use them."""
        return self._process != os.getpid()

    def interrupt(self) -> None:
        """End whatever waits in the group, if the backend lets itself be interrupted in time."""
        if self.group is not None:
            Helper("reshard abort", partial(_abort, self.group, self.backend)).join(RELEASE_S)

    def release(self, patience_s: float | None = None, last_sign: bytes = DONE) -> None:
        """Give everything back, in the lane once it is free; done again, or in a forked process, nothing.

        Args:
            patience_s: how long to wait for that; not at all when None.
            last_sign: what other ranks find in place of signs of life.
        """
        if self.foreign:
            return
        with self._releasing:
            if self not in _live:
                return
            self._last_sign = last_sign
            if self.given_up is None:
                self.given_up = "it has left"  # where it still meets the others
            if self.watch is not None:
                self.watch.close(last_sign)
            given_back = self.lane.ask(self._give_back)
            self.lane.close()
            _live.discard(self)  # last: what is interrupted before is done again
        if patience_s is not None:
            given_back.done(patience_s)

    def _give_back(self) -> None:
        group, self.group = self.group, None
        if self.watch is not None:
            self.watch.close(self._last_sign)  # it may have been made meanwhile
        if group is not None:
            destroy_group(group)
        if self.watch is not None:
            self.watch.join(RELEASE_S)

    def leave(self, why: str) -> None:
        """Tell the other ranks why this one does not go on, and interrupt what waits for them.

        Args:
            why: said to them.
        """
        if self.foreign:
            return
        self.given_up = why
        if self.watch is not None:
            self.watch.announce(why)
        self.interrupt()


_live: Final[set[Belongings]] = set()
"""Those of this process that have not been given back."""


def leave_all(why: str) -> None:
    """Tell the other ranks of all private groups of this process that it leaves, and give the groups up.

    Args:
        why: said to them.
    """
    for each in list(_live):
        with contextlib.suppress(Exception):  # there is nobody left to tell of it
            each.leave(why)
            each.release(last_sign=LEFT)


def _end() -> None:
    leave_all("its process has ended")
    join_helpers(EXIT_S)


def _abort(group: dist.ProcessGroup, backend: str) -> None:
    with contextlib.suppress(Exception):  # such as of a group that its owner has destroyed
        abort_group(group, backend)


atexit.register(_end)
