"""How NCCL M2N's modes deal work out: who serves whom.

The modes differ in nothing else, so that a mode is a function of the two sides and the domains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard_planner.routing.m2n_sides import M2nSide


@dataclass(frozen=True, slots=True)
class Share:
    """Replicas of the destination that one replica of the source serves.

    Attributes:
        sender: position of the source replica.
        receivers: positions of the destination replicas, ascending.
    """

    sender: int
    receivers: tuple[int, ...]


Deal = Callable[[M2nSide, M2nSide, Sequence[int]], list[Share]]
"""Deals the replicas of a destination out to those of a source, given the domain of every rank."""


def split(count: int, parts: int) -> list[range]:
    """Ranges of ``count`` numbers that follow one another, as even as can be; the first ones are longer.

    >>> split(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    even, more = divmod(count, parts)
    starts = [part * even + min(part, more) for part in range(parts + 1)]
    return [range(*starts[part : part + 2]) for part in range(parts)]
