"""Replicas: the copies of a tensor that a layout consists of, and which of them lose parts with ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks
from reshard_planner.box import Box, outside
from reshard_planner.layout import Layout, Tiling

Ints = NDArray[np.int64]


def find_incomplete(
    layout: Layout, shape: tuple[int, ...], gone: frozenset[int]
) -> tuple[tuple[Ranks, Ranks], ...]:
    """Replicas of a tensor that have survivors, which do not store all of it.

    Along each axis of the mesh, ranks that store the same repeat with some period; the ranks of one period
    along every axis are a replica. So an axis of placement ``R`` counts replicas, and so does one along which
    storage repeats.

    Args:
        layout: with all ranks.
        shape: global shape of the tensor, in elements.
        gone: the ranks that are gone.

    Returns:
        For each of them, in order of the mesh, the ranks that are left and those that are gone.
    """
    if gone.isdisjoint(layout.mesh.ranks):
        return ()
    tiling = layout.tiling(shape)
    replica = _number_replicas(_contents(tiling).reshape(layout.mesh.shape)).reshape(-1)
    dead = np.isin(tiling.ranks, np.array(sorted(gone), dtype=np.int64))
    found = []
    for number in np.unique(replica[dead]).tolist():
        own = replica == number
        left, absent = tiling.ranks[own & ~dead].tolist(), tiling.ranks[own & dead].tolist()
        if left and _lacks(tiling, left, absent):
            found.append((tuple(sorted(left)), tuple(sorted(absent))))
    return tuple(found)


def _contents(tiling: Tiling) -> Ints:
    """A number per rank, equal for those that store the same boxes, wherever these lie."""
    _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
    numbers: dict[frozenset[Box], int] = {}
    kinds = [
        numbers.setdefault(frozenset(box for box, _ in tiling.joined(rank)), len(numbers))
        for rank in tiling.ranks[sample].tolist()
    ]
    return np.array(kinds, dtype=np.int64)[alike]


def _number_replicas(alike: Ints) -> Ints:
    """The number of the replica of each rank of a mesh; numbers are equal for those that store the same."""
    number = np.zeros(alike.shape, dtype=np.int64)
    for axis, size in enumerate(alike.shape):
        period = next(step for step in range(1, size + 1) if not size % step and _repeats(alike, axis, step))
        along = [1] * alike.ndim
        along[axis] = size
        number = number * (size // period) + (np.arange(size) // period).reshape(along)
    return number


def _repeats(alike: Ints, axis: int, step: int) -> bool:
    line = np.moveaxis(alike, axis, 0)
    return np.array_equal(line[step:], line[:-step])


def _lacks(tiling: Tiling, left: list[int], absent: list[int]) -> bool:
    """Whether some ranks store elements that some others do not."""
    kind = dict(zip(tiling.ranks.tolist(), tiling.alike.tolist(), strict=True))
    remain = {kind[rank]: rank for rank in left}
    wanted = {kind[rank]: rank for rank in absent if kind[rank] not in remain}
    missing = [box for rank in wanted.values() for box, _ in tiling.joined(rank)]
    stored = [box for rank in remain.values() for box, _ in tiling.joined(rank)] if missing else []
    if not stored:
        return bool(missing)
    lo = np.array([box.lo for box in stored], dtype=np.int64)
    hi = np.array([box.hi for box in stored], dtype=np.int64)
    for box in missing:
        near = np.flatnonzero((lo < box.hi).all(axis=1) & (hi > box.lo).all(axis=1))
        if outside(box, [stored[at] for at in near.tolist()]):
            return True
    return False
