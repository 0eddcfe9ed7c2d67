"""The two sides of a reshard as NCCL M2N knows them: equal shards in order, each with as many copies.

Every layout that it accepts comes down to that: a mesh of two axes, of which one cuts one dimension of the
tensor and the other copies. A side that is not cut is one shard, and all of its ranks are copies of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.box import Box
from reshard_planner.layout import Layout, Tile
from reshard_planner.layout.partition import row_major_strides

UNEQUAL = "its shards are not equal in size and number of copies"
"""Why most layouts are refused; shards of nothing count."""


@dataclass(frozen=True, slots=True)
class M2nSide:
    """One side of one tensor.

    Attributes:
        dim: dimension that is cut; 0 if none is.
        shards: its equal parts, ascending along ``dim``.
        ranks: for each shard the ranks that have a copy of it, ascending. Those at one position are one
            replica of the tensor.
    """

    dim: int
    shards: tuple[Box, ...]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> int:
        """Number of replicas."""
        return len(self.ranks[0])

    def meeting(self, box: Box) -> range:
        """Numbers of the shards that a non-empty box has elements in common with."""
        extent = self.shards[0].shape[self.dim]
        return range(box.lo[self.dim] // extent, -(-box.hi[self.dim] // extent))


def find_side(layout: Layout, shape: tuple[int, ...]) -> M2nSide | str:
    """One side of a tensor of this global shape, of one element or more; or why NCCL M2N cannot express it.

    Reasons are alike for layouts that are refused alike: they name no sizes.
    """
    ranks = sorted(layout.mesh.ranks)
    if ranks[-1] - ranks[0] != len(ranks) - 1:
        return "its ranks are no contiguous interval"
    tiling = layout.tiling(shape)
    _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
    holders: dict[Box, list[int]] = {}
    for kind, rank in enumerate(tiling.ranks[sample].tolist()):
        joined = tiling.joined(rank)
        if not joined:
            return UNEQUAL
        if len(joined) > 1:
            return "a rank holds several boxes"
        [(box, parts)] = joined
        if len(parts) != 1:
            return "a shard lies in several places"
        [(_, tile)] = tiling.local_tiles(rank)
        if not _is_dense(tile):
            return "shards are not dense in their buffers"
        holders.setdefault(box, []).extend(tiling.ranks[alike == kind].tolist())
    cut = {dim for box in holders for dim, size in enumerate(shape) if box.shape[dim] != size}
    if len(cut) > 1:
        return "it is cut in more than one dimension"
    if len({box.shape for box in holders}) > 1 or len(set(map(len, holders.values()))) > 1:
        return UNEQUAL
    dim = min(cut, default=0)
    shards = sorted(holders, key=lambda box: box.lo[dim])
    extent = shards[0].shape[dim]
    if [box.lo[dim] for box in shards] != list(range(0, shape[dim], extent)) or shape[dim] % extent:
        return "its shards do not make up the tensor"
    copies = [tuple(sorted(holders[box])) for box in shards]
    if not _is_a_mesh(ranks[0], sorted(copies)):
        return "its shards do not lie on a mesh of two axes"
    if copies != sorted(copies):
        return "its shards are not in the order of their ranks"
    return M2nSide(dim, tuple(shards), tuple(copies))


def _is_dense(tile: Tile) -> bool:
    """Whether a tile is one run of memory, which may be a part of a buffer."""
    shape = tile.box.shape
    return all(
        extent == 1 or stride == dense
        for extent, stride, dense in zip(shape, tile.strides, row_major_strides(shape), strict=True)
    )


def _is_a_mesh(first: int, copies: Sequence[tuple[int, ...]]) -> bool:
    """Whether shards and copies are rows and columns of an interval of ranks, either way round."""
    ranks = np.array(copies, dtype=np.int64)
    interval = np.arange(first, first + ranks.size)
    return bool(
        np.array_equal(ranks, interval.reshape(ranks.shape))
        or np.array_equal(ranks, interval.reshape(ranks.shape[::-1]).T)
    )
