"""Items: what the optimal strategy routes as a whole, from whole classes down to split boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.demand import Demand, Geometry, Member
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.values import byte_step

Ints = NDArray[np.int64]

LEAST_PIECE_NBYTES = 1024
"""Size below which splitting a class no further pays: at 50 GB/s this is 20 ns, against microseconds
that a message costs. See docs/adr/0003-least-piece.md."""


@dataclass(frozen=True, slots=True)
class Item:
    """Boxes of one class that take the same way.

    Attributes:
        demand: the class.
        group: group of tensors, numbered over all geometries.
        nbytes: bytes in all tensors of the group's first member together.
        boxes: its pieces.
    """

    demand: Demand
    group: int
    nbytes: int
    boxes: tuple[Box, ...]


def make_items(problem: Problem, limit: int | None) -> tuple[list[Item], list[tuple[Member, ...]]]:
    """Cut the demands into items of at most ``limit`` bytes where that is possible.

    Tensors of one geometry are dealt out to several groups first, since that costs no messages; what is
    still too large is split along its outermost dimension with enough extent. Without a limit every
    class of every geometry is one item.

    Returns the items, largest first, and the members of each group.
    """
    by_geometry: dict[int, list[Demand]] = {}
    for demand in problem.demands:
        if demand.member == 0:
            by_geometry.setdefault(demand.geometry, []).append(demand)
    items: list[Item] = []
    groups: list[tuple[Member, ...]] = []
    for number, geometry in enumerate(problem.geometries):
        demands = by_geometry.get(number, [])
        largest = max((demand.nbytes for demand in demands), default=0)
        count = min(len(member.tensors) for member in geometry.members)
        wanted = 1 if limit is None else max(1, min(count, -(-largest // limit)))
        for part in range(wanted):
            members = tuple(Member(member.tensors[part::wanted], member.ranks) for member in geometry.members)
            tensors = len(members[0].tensors)
            for demand in demands:
                nbytes = demand.nbytes // len(geometry.members[0].tensors) * tensors
                items.extend(_split(geometry, demand, len(groups), tensors, nbytes, limit))
            groups.append(members)
    order = sorted(range(len(items)), key=lambda index: -items[index].nbytes)
    return [items[index] for index in order], groups


def _split(
    geometry: Geometry, demand: Demand, group: int, tensors: int, nbytes: int, limit: int | None
) -> Sequence[Item]:
    atoms = geometry.atoms
    first, last = np.searchsorted(atoms.class_of, (demand.class_index, demand.class_index + 1))
    corners = zip(atoms.lo[first:last].tolist(), atoms.hi[first:last].tolist(), strict=True)
    boxes = [Box(tuple(lo), tuple(hi)) for lo, hi in corners]
    if limit is None or nbytes <= limit:
        return [Item(demand, group, nbytes, tuple(boxes))]
    bits = DTYPE_BITS[geometry.sample.dtype]
    items: list[Item] = []
    for box in boxes:
        size = box.volume * bits // 8
        parts = min(-(-size * tensors // limit), max(1, size // LEAST_PIECE_NBYTES))
        pieces = split_box(box, parts, byte_step(bits))
        items.extend(Item(demand, group, piece.volume * bits // 8 * tensors, (piece,)) for piece in pieces)
    return items


def split_box(box: Box, parts: int, step: int) -> list[Box]:
    """Cut a box in about ``parts`` along its outermost dimensions, never finer than ``step`` elements.

    The outermost dimension with an extent of ``parts`` is cut in one go; where none has it, the outer
    ones are cut to single indices first and what remains along the next.
    """
    if parts <= 1 or not box.ndim:
        return [box]
    dim = cut_dim(box, parts, step)
    if extent_steps(box, dim, step) >= parts:
        return list(box.chunks(dim, parts, step if dim == box.ndim - 1 else 1))
    pieces = [box]
    for dim in range(box.ndim):
        steps = extent_steps(box, dim, step)
        count = min(steps, -(-parts // len(pieces)))
        if count > 1:
            align = step if dim == box.ndim - 1 else 1
            pieces = [part for piece in pieces for part in piece.chunks(dim, count, align)]
    return pieces


def cut_dim(box: Box, parts: int, step: int) -> int:
    """The outermost dimension that can be cut in ``parts``, else the one with the most steps; -1 if 0-d."""
    best, most = -1, 0
    for dim in range(box.ndim):
        steps = extent_steps(box, dim, step)
        if steps >= parts:
            return dim
        if steps > most:
            best, most = dim, steps
    return best


def cut_dims(lo: Ints, hi: Ints, parts: int, step: int) -> Ints:
    """:func:`cut_dim` of many boxes; ``lo`` and ``hi`` have the shape (boxes, dims)."""
    if not lo.shape[1]:
        return np.full(len(lo), -1, dtype=np.int64)
    steps = hi - lo
    steps[:, -1] //= step
    enough = steps >= parts
    dims: Ints = np.where(enough.any(1), np.argmax(enough, axis=1), np.argmax(steps, axis=1))
    dims[(steps == 0).all(1)] = -1
    return dims


def extent_steps(box: Box, dim: int, step: int) -> int:
    """Number of indivisible steps along a dimension: elements, or whole bytes in the last one."""
    extent = box.hi[dim] - box.lo[dim]
    return extent // step if dim == box.ndim - 1 else extent
