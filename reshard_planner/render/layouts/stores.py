"""Who stores a box of a tensor under one layout, asked for one cell of a picture after the other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.layout import Layout, Partition, Tiling
from reshard_planner.layout.tiling import cuts_of

Ints = NDArray[np.int64]


class Stores(Protocol):
    """One layout of one tensor, asked for one cell after the other."""

    @property
    def ranks(self) -> Ints:
        """All ranks, shape (ranks,)."""
        ...

    @property
    def volumes(self) -> Ints:
        """Elements that each of them stores, shape (ranks,)."""
        ...

    @property
    def bounds(self) -> tuple[tuple[Ints, Ints], ...]:
        """Per dimension, begins and ends of its ranges, ascending."""
        ...

    def of(self, box: Box) -> tuple[int, ...]:
        """Ranks that store a product of ranges, ascending."""
        ...


def stores_of(layout: Layout, shape: tuple[int, ...]) -> Stores:
    """What a layout says of a tensor of this global shape, in elements.

    Raises:
        LayoutError: if the layout does not fit the shape.
    """
    if layout.storage is None:
        return _OfPartition.make(layout.partition(shape))
    return _OfStorage.make(layout.tiling(shape), shape)


@dataclass(frozen=True, slots=True)
class _OfPartition:
    """Placements: each range belongs to one shard, and each choice of shards to some ranks.

    Attributes:
        ranks: sorted by the number of their choice, then ascending.
        volumes: elements of each.
        keys: number of the choice of each.
        bounds: per dimension, begins and ends of its ranges.
        shards: per dimension, the shard of each range.
        counts: per dimension, the number of shards.
    """

    ranks: Ints
    volumes: Ints
    keys: Ints
    bounds: tuple[tuple[Ints, Ints], ...]
    shards: tuple[Ints, ...]
    counts: tuple[int, ...]

    @classmethod
    def make(cls, partition: Partition) -> _OfPartition:
        bounds, numbers = [], []
        volumes = np.ones(len(partition.ranks), dtype=np.int64)
        for dim, shards in enumerate(partition.shards):
            lengths = np.array([sum(hi - lo for lo, hi in shard) for shard in shards], dtype=np.int64)
            volumes *= lengths[partition.choice[:, dim]]
            lo = np.array([lo for shard in shards for lo, _ in shard], dtype=np.int64)
            hi = np.array([hi for shard in shards for _, hi in shard], dtype=np.int64)
            shard_of = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
            order = np.argsort(lo, kind="stable")
            bounds.append((lo[order], hi[order]))
            numbers.append(shard_of[order])
        keys = partition.alike
        order = np.lexsort((partition.ranks, keys))
        return cls(
            partition.ranks[order],
            volumes[order],
            keys[order],
            tuple(bounds),
            tuple(numbers),
            tuple(map(len, partition.shards)),
        )

    def of(self, box: Box) -> tuple[int, ...]:
        key = 0
        for (lo, _), shards, count, at in zip(self.bounds, self.shards, self.counts, box.lo, strict=True):
            key = key * count + int(shards[np.searchsorted(lo, at)])
        first, last = np.searchsorted(self.keys, (key, key + 1))
        return tuple(self.ranks[first:last].tolist())


@dataclass(frozen=True, slots=True)
class _OfStorage:
    """Storage: boxes of any extents, cut wherever another one begins or ends.

    Attributes:
        ranks: ascending.
        volumes: elements of each; what a rank has twice counts twice.
        alike: a number per rank, equal for ranks that store the same.
        bounds: per dimension, begins and ends of its ranges.
        lo: first corners of all boxes, shape (boxes, dims).
        hi: their other corners, likewise.
        alike_of: the number of the ranks that have each, shape (boxes,).
    """

    ranks: Ints
    volumes: Ints
    alike: Ints
    bounds: tuple[tuple[Ints, Ints], ...]
    lo: Ints
    hi: Ints
    alike_of: Ints

    @classmethod
    def make(cls, tiling: Tiling, shape: tuple[int, ...]) -> _OfStorage:
        order = np.argsort(tiling.ranks)
        ranks, alike = tiling.ranks[order], tiling.alike[order]
        kinds, first, inverse = np.unique(alike, return_index=True, return_inverse=True)
        boxes, alike_of = [], []
        for kind, rank in zip(kinds.tolist(), ranks[first].tolist(), strict=True):
            found = [box for box, _ in tiling.joined(rank)]
            boxes.extend(found)
            alike_of.extend([kind] * len(found))
        volumes = [
            sum(tile.box.volume for _, tile in tiling.local_tiles(rank)) for rank in ranks[first].tolist()
        ]
        corners = (len(boxes), len(shape))
        return cls(
            ranks,
            np.array(volumes, dtype=np.int64)[inverse.reshape(-1)],
            alike,
            tuple(_ranges(cut) for cut in cuts_of([tiling], shape)),
            np.array([box.lo for box in boxes], dtype=np.int64).reshape(corners),
            np.array([box.hi for box in boxes], dtype=np.int64).reshape(corners),
            np.array(alike_of, dtype=np.int64),
        )

    def of(self, box: Box) -> tuple[int, ...]:
        lo, hi = (np.array(corner, dtype=np.int64) for corner in (box.lo, box.hi))
        inside = ((self.lo <= lo) & (hi <= self.hi)).all(axis=1)
        return tuple(self.ranks[np.isin(self.alike, self.alike_of[inside])].tolist())


def _ranges(cut: Ints) -> tuple[Ints, Ints]:
    pairs = np.array(list(pairwise(cut.tolist())), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
