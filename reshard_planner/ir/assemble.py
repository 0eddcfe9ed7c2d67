"""Assembling the tables from routed and timed forests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reshard_planner.ir.tables import Groups, Pieces, Routes, Schedule, Tables
from reshard_planner.routing.forest import NO_TILE, Forest
from reshard_planner.schedule import Timing, Units


def assemble(tensor_count: int, forests: Sequence[Forest], timings: Sequence[Timing], units: Units) -> Tables:
    """Number pieces and rows over all groups and sort the rows canonically.

    Args:
        tensor_count: number of tensors of the spec; each is in exactly one forest.
        forests: routed groups.
        timings: offsets and chunks of each forest.
        units: the schedule.
    """
    group_of = np.zeros(tensor_count, dtype=np.int64)
    for number, forest in enumerate(forests):
        group_of[list(forest.tensors)] = number
    empty = np.zeros(0, dtype=np.int64)
    groups = Groups(group_of, np.arange(len(forests)), empty, empty, empty)
    part = np.zeros(len(units.group), dtype=np.int64)
    schedule = Schedule(units.group, units.tensor, part, units.chunk, units.n_chunks, units.round)
    return Tables(groups, _pieces(forests, timings), _routes(forests, timings), schedule)


def _pieces(forests: Sequence[Forest], timings: Sequence[Timing]) -> Pieces:
    boxes = [box for forest in forests for box in forest.boxes]
    dims = max((box.ndim for box in boxes), default=0)
    lo = np.array([(*box.lo, *(0,) * (dims - box.ndim)) for box in boxes], dtype=np.int64).reshape(
        len(boxes), dims
    )
    hi = np.array([(*box.hi, *(1,) * (dims - box.ndim)) for box in boxes], dtype=np.int64).reshape(
        len(boxes), dims
    )
    group = np.repeat(np.arange(len(forests)), [len(forest.boxes) for forest in forests])
    cut_dim = np.array([dim for timing in timings for dim in timing.cut_dim], dtype=np.int64)
    return Pieces(group, np.zeros(len(boxes), dtype=np.int64), cut_dim, lo, hi)


def _routes(forests: Sequence[Forest], timings: Sequence[Timing]) -> Routes:
    piece_base = np.cumsum([0, *(len(forest.boxes) for forest in forests)])
    row_base = np.cumsum([0, *(len(forest.piece) for forest in forests)])
    piece = _joined(
        [np.array(f.piece, dtype=np.int64) + b for f, b in zip(forests, piece_base, strict=False)]
    )
    parent = _joined(
        [
            np.where(np.array(f.parent) < 0, -1, np.array(f.parent, dtype=np.int64) + b)
            for f, b in zip(forests, row_base, strict=False)
        ]
    )
    src, dst, medium, role, tile = (
        _joined([np.array(getattr(forest, name), dtype=np.int64) for forest in forests])
        for name in ("src", "dst", "medium", "role", "tile")
    )
    offset = _joined([np.array(timing.offset, dtype=np.int64) for timing in timings])
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


def _joined(columns: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
