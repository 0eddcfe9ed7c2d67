"""Moves: the transfers of a plan added up by pair of ranks, medium and role, as columns.

The chunks of a piece add up to the piece, so that neither units nor operations are walked: the cost is that
of the rows of the routes, once for each group that uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.stream import UnitRows

Ints = NDArray[np.int64]

BATCH_ROWS = 2**20
"""Rows that are expanded for their groups before they are added up."""

_BYTE = 256
"""Media and roles are stored as bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Sums of transfers, sorted by (src, dst, medium, role), each combination once.

    Attributes:
        src: sending rank, int64 of shape (moves,), like all others.
        dst: receiving rank.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        count: number of transfers: of pieces of a tensor that a row moves.
        nbytes: bytes of all of them.
        offset: least number of slots after the round of its unit in which one of them runs.
    """

    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    count: Ints
    nbytes: Ints
    offset: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __len__(self) -> int:
        return len(self.src)


def find_moves(
    plan: Plan,
    tensors: Collection[int] | None = None,
    *,
    rank: int | None = None,
    pieces: Ints | None = None,
    boxes: tuple[Ints, Ints] | None = None,
) -> Moves:
    """Add up the transfers of a plan, or some of them.

    Args:
        plan: the plan.
        tensors: positions in the spec; keep what moves these.
        rank: keep what this rank sends or receives.
        pieces: numbers of pieces; keep the trees that carry these.
        boxes: first indices, and those past the last, of disjoint boxes of one tensor, each int64 of shape
            (boxes, dims); count only bytes within these.
    """
    units = UnitRows(plan.spec, plan.tables)
    volumes = units.volumes
    if pieces is not None:
        piece, parent = plan.routes.piece.astype(np.int64), plan.routes.parent.astype(np.int64)
        volumes = volumes * np.isin(np.where(parent >= 0, piece[np.maximum(parent, 0)], piece), pieces)
    if boxes is not None:
        volumes = _within(units, volumes, boxes)
    used = _used(plan, units, tensors)
    parts = [_fold(columns) for columns in _expand(plan, units, used, volumes)]
    src, dst, medium, role, count, nbytes, offset = _fold(
        tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        if parts
        else (np.zeros(0, dtype=np.int64),) * 7
    )
    moves = Moves(src, dst, medium, role, count, nbytes, offset)
    if rank is None:
        return moves
    keep = (src == rank) | (dst == rank)
    return Moves(src[keep], dst[keep], medium[keep], role[keep], count[keep], nbytes[keep], offset[keep])


Columns = tuple[Ints, ...]
"""The columns of :class:`Moves`, in its order."""


def _within(units: UnitRows, volumes: Ints, boxes: tuple[Ints, Ints]) -> Ints:
    """What rows that move ``volumes`` elements move of some boxes."""
    rows = np.flatnonzero(volumes)
    first, last = boxes
    dims = first.shape[1]
    lo, hi = units.boxes.lo[rows, :dims], units.boxes.hi[rows, :dims]
    both, row_of = np.unique(np.concatenate([lo, hi], axis=1), axis=0, return_inverse=True)
    lo, hi = both[:, :dims], both[:, dims:]
    common = np.zeros(len(both), dtype=np.int64)

    def shared(low: Ints, high: Ints, begin: Ints, end: Ints) -> Ints:
        sizes: Ints = np.maximum(np.minimum(high, end) - np.maximum(low, begin), 0).prod(axis=1)
        return sizes

    if len(both) < len(first):
        common[:] = [int(shared(a, b, first, last).sum()) for a, b in zip(lo, hi, strict=True)]
    else:
        for a, b in zip(first, last, strict=True):
            common += shared(lo, hi, a, b)
    found = np.zeros_like(volumes)
    found[rows] = common[row_of.reshape(-1)]
    return found


def _used(plan: Plan, units: UnitRows, tensors: Collection[int] | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Per pair of a renaming and a part: both, the number of tensors, and the bits of an element of each.

    Elements of all tensors of a pair are summed, as every row moves the same box of each.
    """
    schedule, groups = plan.schedule, plan.groups
    keep = units.bin >= 0
    if tensors is not None:
        keep &= np.isin(schedule.tensor, np.fromiter(tensors, dtype=np.int64))
    chosen = np.flatnonzero(keep)
    tensor = schedule.tensor[chosen].astype(np.int64)
    _, first, chunks = np.unique(
        tensor * max(1, units.bins) + units.bin[chosen], return_index=True, return_counts=True
    )
    unit = chosen[first]
    # a plan that leaves chunks out moves that much less
    bits = units.elements.bits[schedule.tensor[unit]] * chunks // np.maximum(1, schedule.n_chunks[unit])
    renamed_by, _ = groups.renamings()
    key = renamed_by[schedule.group[unit]] * max(1, units.bins) + units.bin[unit]
    keys, position = np.unique(key, return_inverse=True)
    total = np.zeros(len(keys), dtype=np.int64)
    np.add.at(total, position, bits)
    count = np.bincount(position, minlength=len(keys)).astype(np.int64)
    return keys // max(1, units.bins), keys % max(1, units.bins), count, total


def _expand(
    plan: Plan, units: UnitRows, used: tuple[Ints, Ints, Ints, Ints], volumes: Ints
) -> Iterator[Columns]:
    """Rows that move any elements, with the ranks and tensors of those that use them, some at a time."""
    routes = plan.routes
    rows = np.flatnonzero(volumes > 0)
    rows = rows[np.argsort(units.row_bin[rows], kind="stable")]
    size = int(max(routes.src.max(initial=-1), routes.dst.max(initial=-1))) + 1
    _, names = plan.groups.renamings(size)
    renaming, part, count, bits = used
    bins = units.row_bin[rows]
    start = np.searchsorted(bins, part, side="left")
    sizes = np.searchsorted(bins, part, side="right") - start
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(part):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + BATCH_ROWS, side="right")))
        many = sizes[begin:end]
        pair = np.repeat(np.arange(begin, end), many)
        row = rows[np.arange(len(pair)) + np.repeat(start[begin:end] - (ends[begin:end] - many - done), many)]
        yield (
            names[renaming[pair], routes.src[row]],
            names[renaming[pair], routes.dst[row]],
            routes.medium[row].astype(np.int64),
            routes.role[row].astype(np.int64),
            count[pair],
            volumes[row] * bits[pair] // 8,
            routes.offset[row].astype(np.int64),
        )
        begin = end


def _fold(columns: Columns) -> Columns:
    """Add up lines of equal ranks, medium and role."""
    src, dst, medium, role, count, nbytes, offset = columns
    size = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    key = ((src * size + dst) * _BYTE + medium) * _BYTE + role
    keys, position = np.unique(key, return_inverse=True)
    counts, sums = np.zeros((2, len(keys)), dtype=np.int64)
    np.add.at(counts, position, count)
    np.add.at(sums, position, nbytes)
    least = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(least, position, offset)
    pair = keys // _BYTE**2
    return pair // size, pair % size, keys // _BYTE % _BYTE, keys % _BYTE, counts, sums, least
