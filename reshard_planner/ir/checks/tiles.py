"""The tiles of one tensor and side as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side

Ints = NDArray[np.int64]

MAX_COMPARISONS = 2**22
"""Most pairs of boxes and tiles that are compared one with one."""


class TileColumns:
    """Every tile of every rank, numbered as plans refer to them.

    Attributes:
        ranks: ranks that store part of the tensor, ascending; some may store empty shards.
        first: position of each rank's first tile in the columns below, and their length.
        rank: rank of each tile.
        lo: first index of its box per dimension, int64 of shape (tiles, dims).
        hi: index past the last, likewise.
        volume: its elements.
    """

    def __init__(self, tensor: TensorSpec, side: Side) -> None:
        self._tensor, self._side = tensor, side
        dims = len(tensor.shape)
        columns: list[tuple[Ints, Ints, Ints, Ints]] = []
        for number, tiling in enumerate(tensor.tilings(side)):
            _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
            tiles = [tiling.joined(rank) for rank in tiling.ranks[sample].tolist()]
            counts = np.array([len(found) for found in tiles], dtype=np.int64)
            starts = np.cumsum(counts) - counts
            boxes = [box for found in tiles for box, _ in found]
            many = counts[alike]
            within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
            at = np.repeat(starts[alike], many) + within
            columns.append(
                (
                    np.repeat(tiling.ranks, many),
                    np.full(len(at), number, dtype=np.int64),
                    np.array([box.lo for box in boxes], dtype=np.int64).reshape(len(boxes), dims)[at],
                    np.array([box.hi for box in boxes], dtype=np.int64).reshape(len(boxes), dims)[at],
                )
            )
        rank, buffer, lo, hi = (np.concatenate([column[i] for column in columns]) for i in range(4))
        order = np.lexsort((buffer, rank))
        self.ranks: Ints = np.unique(np.concatenate([at.ranks for at in tensor.tilings(side)]))
        self.rank, self.lo, self.hi = rank[order], lo[order], hi[order]
        self.first: Ints = np.append(np.searchsorted(self.rank, self.ranks), len(order))
        self.volume: Ints = np.prod(self.hi - self.lo, axis=1, dtype=np.int64)

    def number_of(self, rank: Ints, tile: Ints) -> Ints:
        """Positions in the columns of some ranks' tiles, -1 where a rank has no tile of the number."""
        if not len(self.ranks):
            return np.full(len(rank), -1, dtype=np.int64)
        at = np.searchsorted(self.ranks, rank)
        at = np.minimum(at, len(self.ranks) - 1)
        place = self.first[at] + tile
        known = (self.ranks[at] == rank) & (tile >= 0) & (place < self.first[at + 1])
        return np.where(known, place, -1)

    def holding(self, rank: Ints, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """Whether one of a rank's tiles contains a non-empty box, for some ranks and boxes.

        Args:
            rank: the ranks.
            lo: first index of each box per dimension, shape (boxes, dims).
            hi: index past the last, likewise.
        """
        held = np.zeros(len(rank), dtype=bool)
        at = np.minimum(np.searchsorted(self.ranks, rank), len(self.ranks) - 1)
        known = np.flatnonzero(self.ranks[at] == rank)
        counts = (self.first[at + 1] - self.first[at])[known]
        if int(counts.sum()) > MAX_COMPARISONS:
            return self._search(rank, lo, hi)
        box = np.repeat(known, counts)
        starts = np.repeat(self.first[at[known]] - (np.cumsum(counts) - counts), counts)
        tile = np.arange(len(box)) + starts
        inside = (self.lo[tile] <= lo[box]).all(1) & (hi[box] <= self.hi[tile]).all(1)
        held[box[inside]] = True
        return held

    def _search(self, rank: Ints, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """The same box by box, for ranks of very many tiles."""
        tiles = SideTiles(self._tensor, self._side)
        boxes = zip(rank.tolist(), lo.tolist(), hi.tolist(), strict=True)
        return np.array(
            [bool(tiles.containing(at, Box(tuple(a), tuple(b)))) for at, a, b in boxes], dtype=bool
        )
