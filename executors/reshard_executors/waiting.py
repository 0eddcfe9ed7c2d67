"""Waiting: whom a call waits for, and for what its lane waits at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reshard_executors.belongings import Belongings


class Whom(NamedTuple):
    """Whom a call waits for.

    Attributes:
        names: what each rank of the group is called in messages.
        peers: positions of those that it depends on most.
        met: whether all ranks have met just before.
    """

    names: Sequence[int]
    peers: Sequence[int]
    met: bool = False


class Waiting:
    """What the lane waits for at the moment: written by the lane, read by callers."""

    def __init__(self, held: Belongings) -> None:
        """Wait for nothing."""
        self._held = held
        self._say: Callable[[], str] = str
        self._since = time.monotonic()
        self._for_all = False

    def begin(self, say: Callable[[], str], *, for_all: bool = False) -> None:
        """Begin to wait for something else.

        Args:
            say: says for what, as what goes before the reason where it fails.
            for_all: whether it takes as long as any rank goes forward.
        """
        self._say, self._for_all = say, for_all
        self._since = time.monotonic()
        if self._held.watch is not None:
            self._held.watch.move()

    def end(self, *, well: bool = True) -> None:
        """Wait for nothing any longer; other ranks are not watched then.

        Args:
            well: whether the call has ended well.
        """
        self._say, self._since, self._for_all = str, time.monotonic(), False
        if self._held.watch is not None:
            self._held.watch.end(well=well)

    @property
    def text(self) -> str:
        """What is waited for."""
        return self._say()

    @property
    def since(self) -> float:
        """When it began, or, waiting for all ranks, when one was last seen to go forward; monotonic."""
        watch = self._held.watch
        return max(self._since, watch.moved_at) if self._for_all and watch is not None else self._since
