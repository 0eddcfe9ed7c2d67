"""Pauses: from one look at a store to the next, where ranks wait for one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

FIRST_S: Final = 0.005
"""The first pause: most ranks come at about the same time."""

LAST_S: Final = 0.1
"""The longest pause, in groups of up to 512 ranks."""

S_PER_RANK: Final = LAST_S / 512
"""In larger groups it is longer in proportion, so that one store serves them all."""


def pauses(size: int, last_s: float = LAST_S) -> Iterator[float]:
    """Pauses in seconds without end: the first is short, each twice as long as the one before, to a limit.

    Args:
        size: of the group.
        last_s: the limit in small groups.

    >>> from itertools import islice
    >>> list(islice(pauses(4), 6))
    [0.005, 0.01, 0.02, 0.04, 0.08, 0.1]
    """
    pause_s, most_s = FIRST_S, max(last_s, size * S_PER_RANK)
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, most_s)
