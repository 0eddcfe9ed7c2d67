"""Assembling the tables from routed and timed forests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.tables import Groups, Pieces, Routes, Schedule, Tables
from reshard_planner.routing.forest import NO_TILE, Forest
from reshard_planner.schedule import Timing, Units

Ints = NDArray[np.int64]


def assemble(tensor_count: int, forests: Sequence[Forest], timings: Sequence[Timing], units: Units) -> Tables:
    """Number groups, pieces and rows over all forests and sort the rows canonically.

    Every member of a forest is a group; the first one has the pieces and routes, the others use them
    between renamed ranks.

    Args:
        tensor_count: number of tensors of the spec; each is in exactly one forest.
        forests: routed tensors.
        timings: offsets, parts and chunks of each forest.
        units: the schedule.
    """
    first = np.cumsum([0, *(len(forest.members) for forest in forests)])
    group = first[units.forest] + units.member
    order = np.lexsort((units.chunk, units.part, units.tensor, group, units.round))
    schedule = Schedule(
        *(
            column[order]
            for column in (group, units.tensor, units.part, units.chunk, units.n_chunks, units.round)
        )
    )
    piece_order = np.lexsort(
        (
            _joined([timing.part for timing in timings]),
            np.repeat(np.arange(len(forests)), [len(forest.lo) for forest in forests]),
        )
    )
    return Tables(
        _groups(tensor_count, forests, first),
        _pieces(forests, timings, first, piece_order),
        _routes(forests, timings, piece_order),
        schedule,
    )


def _groups(tensor_count: int, forests: Sequence[Forest], first: Ints) -> Groups:
    group_of = np.zeros(tensor_count, dtype=np.int64)
    renamed: list[tuple[Ints, Ints, Ints]] = []
    for forest, base in zip(forests, first.tolist(), strict=False):
        used = np.unique(np.concatenate((forest.src, forest.dst)))
        for group, member in enumerate(forest.members, base):
            group_of[list(member.tensors)] = group
            if member.ranks is not None:
                moved = used[member.ranks[used] != used]
                renamed.append((np.full(len(moved), group), moved, member.ranks[moved]))
    owner = np.repeat(first[:-1], np.diff(first))
    columns = (_joined([columns[i] for columns in renamed]) for i in range(3))
    return Groups(group_of, owner, *columns)


def _pieces(forests: Sequence[Forest], timings: Sequence[Timing], first: Ints, order: Ints) -> Pieces:
    dims = max((forest.lo.shape[1] for forest in forests if len(forest.lo)), default=0)
    counts = [len(forest.lo) for forest in forests]
    lo = np.zeros((sum(counts), dims), dtype=np.int64)
    hi = np.ones((sum(counts), dims), dtype=np.int64)
    at = 0
    for forest in forests:
        if len(forest.lo):
            lo[at : at + len(forest.lo), : forest.lo.shape[1]] = forest.lo
            hi[at : at + len(forest.lo), : forest.lo.shape[1]] = forest.hi
        at += len(forest.lo)
    return Pieces(
        np.repeat(first[:-1], counts),
        _joined([timing.part for timing in timings])[order],
        _joined([timing.cut_dim for timing in timings])[order],
        lo[order],
        hi[order],
    )


def _routes(forests: Sequence[Forest], timings: Sequence[Timing], piece_order: Ints) -> Routes:
    piece_base = np.cumsum([0, *(len(forest.lo) for forest in forests)]).tolist()
    row_base = np.cumsum([0, *(len(forest.piece) for forest in forests)]).tolist()
    piece = _joined([forest.piece + base for forest, base in zip(forests, piece_base, strict=False)])
    new_piece = np.empty(len(piece_order), dtype=np.int64)
    new_piece[piece_order] = np.arange(len(piece_order))
    piece = new_piece[piece]
    parent = _joined(
        [
            np.where(forest.parent < 0, -1, forest.parent + base)
            for forest, base in zip(forests, row_base, strict=False)
        ]
    )
    src, dst, medium, role, tile = (
        _joined([getattr(forest, name) for forest in forests])
        for name in ("src", "dst", "medium", "role", "tile")
    )
    offset = _joined([timing.offset for timing in timings])
    order = np.lexsort((tile, dst, offset, piece, src))
    new_number = np.empty(len(order), dtype=np.int64)
    new_number[order] = np.arange(len(order))
    parent = np.where(parent < 0, -1, new_number[np.maximum(parent, 0)])
    return Routes(
        piece[order],
        parent[order],
        src[order],
        dst[order],
        medium[order],
        role[order],
        tile[order] == NO_TILE,
        tile[order],
        offset[order],
    )


def _joined(columns: list[Ints]) -> Ints:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
