"""From tapes to pieces: the boxes of every type are cut where its tree changes.

The bytes of a type, box after box, are a tape. Boxes stay whole where the tree does not change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from reshard_planner.atoms import Ranks
from reshard_planner.demand import Demand
from reshard_planner.routing.cuts import split_at
from reshard_planner.routing.items import Item, boxes_of
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.trees import Transfer
from reshard_planner.spec.values import byte_step

NEGLIGIBLE = 1e-6
"""Bytes before the end of a box within which a cut counts as its end."""


class Tape(Protocol):
    """The bytes of one type, and the tree of each."""

    @property
    def holders(self) -> Ranks:
        """Ranks that have the bytes."""

    @property
    def needers(self) -> Ranks:
        """Ranks that must have them."""

    @property
    def cuts(self) -> Sequence[float]:
        """Positions where the tree changes, ascending."""

    def tree(self, position: float) -> Sequence[Transfer]:
        """The tree of the bytes at a position."""


def realize(
    problem: Problem, tapes: Sequence[Tape]
) -> tuple[list[Item], list[tuple[int, ...]], list[Sequence[Transfer]]]:
    """Items, the tensors of each group, and the transfers of each item, for ``build_forests``."""
    by_type: dict[tuple[Ranks, Ranks], list[tuple[Demand, int]]] = {}
    groups: list[tuple[int, ...]] = []
    numbers: dict[tuple[int, int], int] = {}
    for number, geometry in enumerate(problem.geometries):
        for position, member in enumerate(geometry.members):
            numbers[number, position] = len(groups)
            groups.append(member.tensors)
    for demand in problem.demands:
        group = numbers[demand.geometry, demand.member]
        by_type.setdefault((demand.holders, demand.needers), []).append((demand, group))
    items: list[Item] = []
    transfers: list[Sequence[Transfer]] = []
    for tape in tapes:
        start = 0
        for demand, group in by_type[tape.holders, tape.needers]:
            geometry = problem.geometries[demand.geometry]
            bits, tensors = geometry.sample.bits, len(groups[group])
            for box in boxes_of(geometry, demand):
                nbytes = box.volume * bits // 8 * tensors
                stop = start + nbytes
                inside = tape.cuts[
                    bisect_right(tape.cuts, start) : bisect_right(tape.cuts, stop - NEGLIGIBLE)
                ]
                shares = [(cut - start) / nbytes for cut in inside]
                for piece, middle in split_at(box, shares, bits, byte_step(bits)):
                    items.append(Item(demand, group, piece.volume * bits // 8 * tensors, (piece,)))
                    transfers.append(tape.tree(start + nbytes * middle))
                start = stop
    return items, groups, transfers
