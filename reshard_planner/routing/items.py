"""Items: what the optimal strategy routes as a whole, from whole classes down to split boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.box import Box
from reshard_planner.demand import Demand, Geometry
from reshard_planner.routing.cuts import LEAST_PIECE_NBYTES, split_box
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.values import byte_step


@dataclass(frozen=True, slots=True)
class Item:
    """Boxes of one class that take the same way.

    Attributes:
        demand: the class.
        group: group of tensors, numbered over all geometries.
        nbytes: bytes in all tensors of the group together.
        boxes: its pieces.
    """

    demand: Demand
    group: int
    nbytes: int
    boxes: tuple[Box, ...]


def make_items(problem: Problem, limit: int | None) -> tuple[list[Item], list[tuple[int, ...]]]:
    """Cut the demands into items of at most ``limit`` bytes where that is possible.

    Tensors of one geometry are dealt out to several groups first, since that costs no messages; what is
    still too large is split along its outermost dimension with enough extent. Without a limit every
    class of every geometry is one item.

    Returns the items, largest first, and the tensors of each group.
    """
    by_member: dict[tuple[int, int], list[Demand]] = {}
    for demand in problem.demands:
        by_member.setdefault((demand.geometry, demand.member), []).append(demand)
    items: list[Item] = []
    groups: list[tuple[int, ...]] = []
    for number, geometry in enumerate(problem.geometries):
        for position, member in enumerate(geometry.members):
            demands = by_member.get((number, position), [])
            largest = max((demand.nbytes for demand in demands), default=0)
            count = len(member.tensors)
            wanted = 1 if limit is None else max(1, min(count, -(-largest // limit)))
            for part in range(wanted):
                tensors = member.tensors[part::wanted]
                for demand in demands:
                    nbytes = demand.nbytes // count * len(tensors)
                    items.extend(_split(geometry, demand, len(groups), len(tensors), nbytes, limit))
                groups.append(tensors)
    order = sorted(range(len(items)), key=lambda index: -items[index].nbytes)
    return [items[index] for index in order], groups


def boxes_of(geometry: Geometry, demand: Demand) -> list[Box]:
    """The atoms of a class."""
    atoms = geometry.atoms
    first, last = np.searchsorted(atoms.class_of, (demand.class_index, demand.class_index + 1))
    corners = zip(atoms.lo[first:last].tolist(), atoms.hi[first:last].tolist(), strict=True)
    return [Box(tuple(lo), tuple(hi)) for lo, hi in corners]


def _split(
    geometry: Geometry, demand: Demand, group: int, tensors: int, nbytes: int, limit: int | None
) -> Sequence[Item]:
    boxes = boxes_of(geometry, demand)
    if limit is None or nbytes <= limit:
        return [Item(demand, group, nbytes, tuple(boxes))]
    bits = geometry.sample.bits
    items: list[Item] = []
    for box in boxes:
        size = box.volume * bits // 8
        parts = min(-(-size * tensors // limit), max(1, size // LEAST_PIECE_NBYTES))
        pieces = split_box(box, parts, byte_step(bits))
        items.extend(Item(demand, group, piece.volume * bits // 8 * tensors, (piece,)) for piece in pieces)
    return items
