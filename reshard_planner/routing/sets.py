"""Sets of ranks by number, and turns that are taken on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks

Ints = NDArray[np.int64]


class Sets:
    """Numbers for sets of ranks, the same for equal sets of all geometries."""

    def __init__(self) -> None:
        self._numbers: dict[Ranks, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, ranks: Ranks) -> int:
        """The number of a set, a new one if it has none yet."""
        return self._numbers.setdefault(ranks, len(self._numbers))


class Turns:
    """A counter per set, which goes on from geometry to geometry so that turns even out over all.

    Attributes:
        time: time that the port which the turns are on has been given so far, in seconds, indexed by rank.
    """

    def __init__(self, sets: int, ranks: int) -> None:
        self._next = np.zeros(sets, dtype=np.int64)
        self.time = np.zeros(ranks)

    def align(self, sets: Ints, ranks: Ints) -> None:
        """Give the next turn on each set to the rank with least time so far; ``ranks`` has a row per set."""
        distinct, first = np.unique(sets, return_index=True)
        least = np.argmin(self.time[ranks[first]], axis=1)
        self._next[distinct] += (least - self._next[distinct]) % ranks.shape[1]

    def take(self, sets: Ints, counts: Ints) -> Ints:
        """Take ``counts[i]`` turns on set ``sets[i]``, in order; returns the first turn of each."""
        order = np.argsort(sets, kind="stable")
        ordered, taken = sets[order], counts[order]
        total = np.cumsum(taken)
        before = total - taken
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        lengths = np.diff(np.append(starts, len(ordered)))
        first = np.empty(len(sets), dtype=np.int64)
        first[order] = before - np.repeat(before[starts], lengths) + self._next[ordered]
        np.add.at(self._next, sets, counts)
        return first
