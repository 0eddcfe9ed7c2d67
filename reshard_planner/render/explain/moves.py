"""Which bytes of a tensor move: its operations, cut by class and added up between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Atoms
from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.ops import Ops
from reshard_planner.layout.tiling import cuts_of
from reshard_planner.spec import TensorSpec

Ints = NDArray[np.int64]

UNNEEDED = -1
"""Class of the bytes that nobody needs; some baselines move them all the same."""

BLOCK_CELLS = 2**20
"""Overlaps of boxes that are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Operations cut at the bounds of classes: an entry for each operation and class that it moves.

    Attributes:
        op: position of the operation, ascending, int64 of shape (overlaps,).
        klass: number of the class, :data:`UNNEEDED` for bytes that nobody needs, likewise.
        nbytes: bytes of that class that the operation moves, likewise.
    """

    op: Ints
    klass: Ints
    nbytes: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class ClassMoves:
    """Bytes of a class from one rank to another, summed over pieces and units.

    Sorted by (klass, medium, role, forwarded, scratch, src, dst), which no two entries share; all int64 of
    shape (moves,).

    Attributes:
        klass: number of the class, :data:`UNNEEDED` for bytes that nobody needs.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        forwarded: 1 if the sender got the bytes in this plan, 0 if it sends its own tile.
        scratch: 1 if the receiver keeps the bytes aside.
        src: sending rank.
        dst: receiving rank.
        nbytes: bytes of the class.
        operations: operations that carry some of them.
        first: first slot in which one of them runs.
        last: last slot.
    """

    klass: Ints
    medium: Ints
    role: Ints
    forwarded: Ints
    scratch: Ints
    src: Ints
    dst: Ints
    nbytes: Ints
    operations: Ints
    first: Ints
    last: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __len__(self) -> int:
        return len(self.klass)

    def select(self, at: NDArray[np.bool_] | Ints | slice) -> ClassMoves:
        """The entries at a mask, at positions or in a range."""
        return ClassMoves(
            self.klass[at],
            self.medium[at],
            self.role[at],
            self.forwarded[at],
            self.scratch[at],
            self.src[at],
            self.dst[at],
            self.nbytes[at],
            self.operations[at],
            self.first[at],
            self.last[at],
        )

    def of_class(self, number: int) -> ClassMoves:
        """The entries of one class."""
        first, last = np.searchsorted(self.klass, (number, number + 1)).tolist()
        return self.select(slice(first, last))


def find_overlaps(tensor: TensorSpec, atoms: Atoms, ops: Ops) -> Overlaps:
    """Cut the operations of one tensor at the bounds of its classes.

    Equal boxes are cut once; each costs as much as it has atoms.
    """
    if not len(ops):
        return Overlaps(ops.op, ops.op, ops.op)
    dims = len(tensor.shape)
    cuts = cuts_of(tensor.tilings("src") + tensor.tilings("dst"), tensor.shape)
    extents = [max(0, len(cut) - 1) for cut in cuts]
    class_of = np.full(prod(extents), UNNEEDED, dtype=np.int64)
    bounds = [np.asarray(cut, dtype=np.int64) for cut in cuts]
    cell = np.zeros(len(atoms.lo), dtype=np.int64)
    for dim, bound in enumerate(bounds):
        cell = cell * extents[dim] + np.searchsorted(bound, atoms.lo[:, dim])
    class_of[cell] = atoms.class_of
    box, sample = number_rows([column for dim in range(dims) for column in (ops.lo[:, dim], ops.hi[:, dim])])
    if not dims:
        box, sample = np.zeros(len(ops), dtype=np.int64), np.arange(1)
    found = list(_cut_boxes(ops.lo[sample, :dims], ops.hi[sample, :dims], bounds, class_of))
    of_box, klass, volume = (np.concatenate([part[at] for part in found]) for at in range(3))
    first = np.searchsorted(of_box, box)
    count = np.searchsorted(of_box, box, side="right") - first
    op = np.repeat(np.arange(len(ops)), count)
    starts = np.cumsum(count) - count
    at = first[op] + np.arange(len(op)) - starts[op]
    return Overlaps(op, klass[at], volume[at] * tensor.bits // 8)


def _cut_boxes(
    lo: Ints, hi: Ints, bounds: Sequence[Ints], class_of: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Box, class and elements of everything that boxes and classes have in common, boxes ascending."""
    first = [np.searchsorted(bound, lo[:, dim], side="right") - 1 for dim, bound in enumerate(bounds)]
    count = [np.searchsorted(bound, hi[:, dim]) - first[dim] for dim, bound in enumerate(bounds)]
    cells = np.ones(len(lo), dtype=np.int64)
    for many in count:
        cells *= many
    ends = np.cumsum(cells)
    begin = 0
    while begin < len(lo):
        wanted = (ends[begin - 1] if begin else 0) + BLOCK_CELLS
        end = max(begin + 1, int(np.searchsorted(ends, wanted, side="right")))
        box = np.arange(begin, end)
        volume, cell = np.ones(len(box), dtype=np.int64), np.zeros(len(box), dtype=np.int64)
        for dim, bound in enumerate(bounds):
            many = count[dim][box]
            starts = np.repeat(np.cumsum(many) - many, many)
            box, volume, cell = (np.repeat(column, many) for column in (box, volume, cell))
            at = first[dim][box] + np.arange(len(box)) - starts
            volume = volume * (np.minimum(hi[box, dim], bound[at + 1]) - np.maximum(lo[box, dim], bound[at]))
            cell = cell * (len(bound) - 1) + at
        size = int(class_of.max(initial=0)) + 2
        keys, inverse = np.unique(box * size + class_of[cell] + 1, return_inverse=True)
        total = np.zeros(len(keys), dtype=np.int64)
        np.add.at(total, inverse.reshape(-1), volume)
        yield keys // size, keys % size - 1, total
        begin = end


def number_rows(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number the distinct rows of some columns in lexicographic order.

    Returns:
        Number of each row, and position of the first row of each number.
    """
    if not columns:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        number = number * max(1, len(values)) + place.reshape(-1)
        number = np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)
    _, first = np.unique(number, return_index=True)
    return number, first.astype(np.int64)


def sum_moves(ops: Ops, overlaps: Overlaps) -> ClassMoves:
    """Add up what moves between two ranks."""
    op = overlaps.op
    keys = [
        overlaps.klass,
        ops.medium[op],
        ops.role[op],
        (ops.parent[op] >= 0).astype(np.int64),
        (ops.scratch[op] > 0).astype(np.int64),
        ops.src[op],
        ops.dst[op],
    ]
    number, sample = number_rows(keys)
    nbytes = np.zeros(len(sample), dtype=np.int64)
    np.add.at(nbytes, number, overlaps.nbytes)
    first = np.full(len(sample), np.iinfo(np.int64).max)
    np.minimum.at(first, number, ops.slot[op])
    last = np.zeros(len(sample), dtype=np.int64)
    np.maximum.at(last, number, ops.slot[op])
    operations = np.bincount(number, minlength=len(sample)).astype(np.int64)
    return ClassMoves(*[*(column[sample] for column in keys), nbytes, operations, first, last])
