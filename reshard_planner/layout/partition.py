"""Partitions: the shards of one tensor that placements give, as columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from operator import itemgetter
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.layout.intervals import Intervals, length
from reshard_planner.layout.tile import Tile
from reshard_planner.layout.tiling import Painted, alike_ranks


@dataclass(frozen=True, slots=True)
class Partition:
    """Who stores what of one tensor: the distinct shards per dimension, and each rank's choice; a ``Tiling``.

    Each dimension is partitioned by its shards: every index lies in exactly one of them. A rank
    stores the product of one shard per dimension; ranks with equal choices are replicas.

    Attributes:
        shards: per dimension, the distinct shards in order of their mesh coordinates.
        ranks: the ranks of the mesh in row-major order, int64 of shape (ranks,).
        choice: the shard that each rank stores along each dimension, int64 of shape (ranks, dims).
        rows: the same by rank.
    """

    shards: tuple[tuple[Intervals, ...], ...]
    ranks: NDArray[np.int64]
    choice: NDArray[np.int64]
    rows: Mapping[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        choices = map(tuple, self.choice.tolist())
        rows = MappingProxyType(dict(zip(self.ranks.tolist(), choices, strict=True)))
        object.__setattr__(self, "rows", rows)

    def intervals(self, rank: int) -> tuple[Intervals, ...]:
        """What a rank of the mesh stores along each dimension.

        Raises:
            KeyError: if the rank is not in the mesh.
        """
        row = self.rows[rank]
        return tuple(dim[index] for dim, index in zip(self.shards, row, strict=True))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Shape of a rank's local buffer, in elements."""
        return tuple(length(intervals) for intervals in self.intervals(rank))

    @property
    def alike(self) -> NDArray[np.int64]:
        """A number per rank, equal for ranks that store the same shards, int64 of shape (ranks,)."""
        key = np.zeros(len(self.ranks), dtype=np.int64)
        for dim, shards in enumerate(self.shards):
            key = key * len(shards) + self.choice[:, dim]
        return key

    def buffers(self, rank: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The one local buffer of a rank of the mesh: number 0, and its shape in elements."""
        return ((0, self.local_shape(rank)),)

    def count(self, rank: int) -> int:
        """Number of the rank's non-empty boxes."""
        return prod(map(len, self.intervals(rank)))

    def containing(self, rank: int, box: Box) -> tuple[int, ...]:
        """Number of the rank's tile that contains a non-empty box, if one does.

        A shard's intervals ascend, so that along each dimension one can be found by bisection.
        """
        number = 0
        for intervals, lo, hi in zip(self.intervals(rank), box.lo, box.hi, strict=True):
            at = bisect_right(intervals, lo, key=itemgetter(0)) - 1
            if at < 0 or hi > intervals[at][1]:
                return ()
            number = number * len(intervals) + at
        return (number,)

    def cuts(self, dim: int) -> set[int]:
        """Where shards begin or end along a dimension."""
        return {bound for shard in self.shards[dim] for lo_hi in shard for bound in lo_hi}

    def paint(self, cuts: list[NDArray[np.int64]], extents: tuple[int, ...]) -> tuple[Painted]:
        """Colour the atoms between cuts by the shards that they lie in."""
        key = np.zeros(extents, dtype=np.int64)
        for dim, cut in enumerate(cuts):
            shard_of = np.zeros(extents[dim], dtype=np.int64)
            for shard, intervals in enumerate(self.shards[dim]):
                for lo, hi in intervals:
                    first, last = np.searchsorted(cut, (lo, hi))
                    shard_of[first:last] = shard
            along = [1] * len(extents)
            along[dim] = extents[dim]
            key = key * len(self.shards[dim]) + shard_of.reshape(along)
        return (Painted(key.reshape(-1), alike_ranks(self.ranks, self.alike)),)

    def local_tiles(self, rank: int) -> tuple[tuple[int, Tile], ...]:
        """The rank's tiles, each with the position of its buffer, 0."""
        return tuple((0, tile) for tile in self.tiles(rank))

    def joined(self, rank: int) -> tuple[tuple[Box, tuple[int, ...]], ...]:
        """The boxes of the rank's tiles, each with its number."""
        return tuple((tile.box, (number,)) for number, tile in enumerate(self.tiles(rank)))

    def tiles(self, rank: int) -> tuple[Tile, ...]:
        """The non-empty boxes that a rank stores, in storage order."""
        per_dim = self.intervals(rank)
        strides = row_major_strides(tuple(length(intervals) for intervals in per_dim))
        starts = [_starts(intervals) for intervals in per_dim]
        tiles = []
        for combination in product(*(range(len(intervals)) for intervals in per_dim)):
            lo = tuple(per_dim[d][i][0] for d, i in enumerate(combination))
            hi = tuple(per_dim[d][i][1] for d, i in enumerate(combination))
            offset = sum(starts[d][i] * strides[d] for d, i in enumerate(combination))
            box = Box(lo, hi)
            if box.volume:
                tiles.append(Tile(box, offset, strides))
        return tuple(tiles)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Distance between neighbours per dimension of a dense row-major buffer, in elements."""
    return tuple(prod(max(1, extent) for extent in shape[d + 1 :]) for d in range(len(shape)))


def _starts(intervals: Intervals) -> list[int]:
    starts = []
    position = 0
    for lo, hi in intervals:
        starts.append(position)
        position += hi - lo
    return starts
