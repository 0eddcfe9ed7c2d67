"""Every tile of one tensor, per side and rank, numbered as plans refer to them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter

from reshard_planner.box import Box
from reshard_planner.layout import Tile
from reshard_planner.layout.intervals import Intervals
from reshard_planner.spec.values import Side, TensorSpec


@dataclass(frozen=True, slots=True)
class LocalTile:
    """A tile and the buffer it lies in.

    Attributes:
        buffer: position among the rank's buffers of this tensor and side.
        tile: box, offset and strides.
    """

    buffer: int
    tile: Tile


class SideTiles:
    """The tiles of one tensor on one side.

    A rank has one buffer per layout that it is part of, in the order of the layouts, and its tiles are
    numbered through all of them in storage order. Plans name destination tiles by these numbers.
    """

    def __init__(self, tensor: TensorSpec, side: Side) -> None:
        self._partitions = tensor.partitions(side)
        self._positions = [
            {rank: position for position, rank in enumerate(partition.ranks.tolist())}
            for partition in self._partitions
        ]
        self._tiles: dict[int, tuple[LocalTile, ...]] = {}

    def ranks(self) -> tuple[int, ...]:
        """Ranks that store part of the tensor on this side, ascending; some may store empty shards."""
        return tuple(sorted({rank for positions in self._positions for rank in positions}))

    def buffer_shapes(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """Shape in elements of each of the rank's buffers; none for a rank outside the meshes."""
        return tuple(
            partition.local_shape(rank)
            for partition, positions in zip(self._partitions, self._positions, strict=True)
            if rank in positions
        )

    def count(self, rank: int) -> int:
        """Number of the rank's non-empty tiles."""
        return sum(
            prod(map(len, partition.intervals(rank)))
            for partition, positions in zip(self._partitions, self._positions, strict=True)
            if rank in positions
        )

    def tiles(self, rank: int) -> tuple[LocalTile, ...]:
        """The rank's non-empty tiles through all of its buffers."""
        if rank not in self._tiles:
            found: list[LocalTile] = []
            buffer = 0
            for partition, positions in zip(self._partitions, self._positions, strict=True):
                if rank in positions:
                    found.extend(LocalTile(buffer, tile) for tile in partition.tiles(rank))
                    buffer += 1
            self._tiles[rank] = tuple(found)
        return self._tiles[rank]

    def containing(self, rank: int, box: Box) -> tuple[int, ...]:
        """Numbers of the rank's tiles that contain a non-empty box, ascending; at most one per buffer."""
        found = []
        base = 0
        for partition, positions in zip(self._partitions, self._positions, strict=True):
            if rank not in positions:
                continue
            per_dim = partition.intervals(rank)
            number = _number(per_dim, box)
            if number is not None:
                found.append(base + number)
            base += prod(map(len, per_dim))
        return tuple(found)


def _number(per_dim: Sequence[Intervals], box: Box) -> int | None:
    """Number of the tile that contains a box, among the products of the intervals; None if none does.

    A shard's intervals ascend, so that along each dimension one can be found by bisection.
    """
    number = 0
    for intervals, lo, hi in zip(per_dim, box.lo, box.hi, strict=True):
        at = bisect_right(intervals, lo, key=itemgetter(0)) - 1
        if at < 0 or hi > intervals[at][1]:
            return None
        number = number * len(intervals) + at
    return number
