"""Partitions: the shards of one tensor under one layout, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.layout.intervals import Intervals, length
from reshard_planner.layout.tile import Tile


@dataclass(frozen=True, slots=True)
class Partition:
    """Who stores what of one tensor: the distinct shards per dimension, and each rank's choice.

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
