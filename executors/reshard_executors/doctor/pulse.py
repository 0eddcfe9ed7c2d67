"""Pulse: each rank gives signs of life while it is examined, so that one that ends is not waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from reshard_executors.lane import within

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT_S: Final = 1.0
"""From one sign of life to the next, and from one look at those of others to the next."""

LOST_AFTER_S: Final = 10.0
"""A rank without a sign of life for so long is lost: imports and drivers may hold Python up for seconds."""

PAUSE_S: Final = 2.0
"""Others are looked at far more often than this."""

SAY_S: Final = 1.0
"""How long it may take to tell others why this rank ends."""

HEAR_S: Final = 1.5
"""How long rank 0, which may keep the store, stays on then, so that others hear of it."""

ENDED: Final = "pulse/ended"
"""Key in the store: some rank has said why it ends."""


class Pulse:
    """Signs of life of this rank and of others, over a connection of their own."""

    def __init__(self, store: Store, rank: int) -> None:
        """Begin to give signs of life.

        Args:
            store: of all ranks.
            rank: of this process.

        Raises:
            RuntimeError: if the store is gone.
        """
        unspoken: Any = store  # torch's types do not tell that stores can be cloned
        self._store: Store = unspoken.clone()
        self._rank = rank
        self._closed = threading.Event()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._look_at = time.monotonic()
        threading.Thread(target=self._beat, name="doctor pulse", daemon=True).start()

    def _beat(self) -> None:
        beats = 0
        with suppress(RuntimeError):  # the store is gone, as others find out by themselves
            while not self._closed.is_set():
                self._store.set(_key(self._rank), str(beats))
                beats += 1
                self._closed.wait(BEAT_S)

    def close(self) -> None:
        """Give no more signs of life."""
        self._closed.set()

    def find_ended(self, ranks: Iterable[int]) -> dict[int, str]:
        """Why ranks have ended that were there; empty as long as nothing is known.

        Raises:
            RuntimeError: if the store is gone.
        """
        now = time.monotonic()
        if now < self._look_at:
            return {}
        stopped = now > self._look_at + PAUSE_S  # this process was, and others may have been
        self._look_at = now + BEAT_S
        ranks = tuple(ranks)
        found: dict[int, str] = {}
        if self._store.check([ENDED]):
            said = [rank for rank in ranks if self._store.check([_last_word(rank)])]
            found = {rank: self._store.get(_last_word(rank)).decode(errors="replace") for rank in said}
        for rank in ranks:
            if rank != self._rank and rank not in found and self._store.check([_key(rank)]):
                sign = self._store.get(_key(rank))
                before, since = self._seen.get(rank, (b"", now))
                self._seen[rank] = (sign, now if stopped or sign != before else since)
                if now - self._seen[rank][1] > LOST_AFTER_S:
                    found[rank] = f"it has given no sign of life for {LOST_AFTER_S:g} s"
        return found

    def say(self, why: str) -> float:
        """Tell the other ranks why this one ends; how long it has to stay then, in seconds."""

        def work() -> None:
            self._store.set(_last_word(self._rank), why)
            self._store.set(ENDED, "")

        with suppress(RuntimeError, TimeoutError):
            within(SAY_S, work)
        return HEAR_S if self._rank == 0 else 0.0


class Farewell:
    """What a process that a signal ends tells the others, once it has come to them."""

    def __init__(self) -> None:
        """Begin without others."""
        self.pulse: Pulse | None = None

    def say(self, why: str) -> float:
        """See :meth:`Pulse.say`."""
        return 0.0 if self.pulse is None else self.pulse.say(why)


def _key(rank: int) -> str:
    return f"pulse/{rank}"


def _last_word(rank: int) -> str:
    return f"pulse/last word of {rank}"
