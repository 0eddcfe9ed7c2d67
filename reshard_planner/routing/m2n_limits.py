"""What NCCL M2N accepts, parameter by parameter.

The limits are those that the library documents or checks (NVIDIA/nccl-extensions, ``nccl_m2n``, release
0.1.0, README and source). One reshard moves a tensor of one to three dimensions between two disjoint,
contiguous intervals of ranks, each a mesh of at most two axes of which one cuts one dimension evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from reshard_planner.box import Box
from reshard_planner.layout import Layout, Tile
from reshard_planner.layout.partition import row_major_strides
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side

MAX_DIMS = 3

MAX_SOURCES = 16
"""Source shards that one destination shard is made of."""

MAX_TARGETS = 64
"""Destination shards that one source shard is cut in."""

DTYPES = frozenset(
    ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "int32", "uint32", "float32")
) | frozenset(("int64", "uint64", "float64"))

SIDES: tuple[tuple[Side, str], ...] = (("src", "source"), ("dst", "destination"))


def why_refused(tensor: TensorSpec) -> str | None:
    """Why NCCL M2N would refuse a tensor; None if it would move it.

    Reasons are alike for tensors that are refused alike: they name no sizes.
    """
    if not 1 <= len(tensor.shape) <= MAX_DIMS:
        return f"it has fewer than 1 or more than {MAX_DIMS} dimensions"
    if tensor.dst_dtype != tensor.dtype:
        return f"it is converted from {tensor.dtype} to {tensor.dst_dtype}"
    if tensor.dtype not in DTYPES:
        return f"its dtype is {tensor.dtype}"
    for side, word in SIDES:
        if len(tensor.layouts(side)) > 1:
            return f"it has several {word} layouts"
        reason = _why_not_a_side(tensor.layouts(side)[0], tensor.shape)
        if reason is not None:
            return f"{word}: {reason}"
    return _why_not_together(tensor)


@lru_cache(maxsize=4096)
def _why_not_a_side(layout: Layout, shape: tuple[int, ...]) -> str | None:
    """Why one side is no mesh of two axes that cuts one dimension into dense, equal shards."""
    ranks = sorted(layout.mesh.ranks)
    if ranks[-1] - ranks[0] != len(ranks) - 1:
        return "its ranks are no contiguous interval"
    tiling = layout.tiling(shape)
    _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
    holders: dict[Box, list[int]] = {}
    for kind, rank in enumerate(tiling.ranks[sample].tolist()):
        joined = tiling.joined(rank)
        if len(joined) != 1:
            return "a rank holds several boxes, or none"
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
        return "its shards are not equal in size and number of copies"
    grid = [sorted(own) for own in holders.values()]
    return None if _is_a_grid(ranks[0], grid) else "its shards do not lie on a mesh of two axes"


def _is_dense(tile: Tile) -> bool:
    """Whether a tile is one run of memory, which may be a part of a buffer."""
    shape = tile.box.shape
    return all(
        extent == 1 or stride == dense
        for extent, stride, dense in zip(shape, tile.strides, row_major_strides(shape), strict=True)
    )


def _is_a_grid(first: int, holders: Sequence[list[int]]) -> bool:
    """Whether shards and copies are rows and columns of an interval of ranks, either way round."""
    grid = np.array(sorted(holders), dtype=np.int64)
    interval = np.arange(first, first + grid.size)
    return bool(
        np.array_equal(grid, interval.reshape(grid.shape))
        or np.array_equal(grid, interval.reshape(grid.shape[::-1]).T)
    )


def _why_not_together(tensor: TensorSpec) -> str | None:
    sides = [{rank for layout in tensor.layouts(side) for rank in layout.mesh.ranks} for side, _ in SIDES]
    if sides[0] & sides[1]:
        return "source and destination have ranks in common"
    held, needed = (_boxes(tensor, side) for side, _ in SIDES)
    if max(_meeting(box, held) for box in needed) > MAX_SOURCES:
        return f"a destination shard is made of more than {MAX_SOURCES} source shards"
    if max(_meeting(box, needed) for box in held) > MAX_TARGETS:
        return f"a source shard is cut in more than {MAX_TARGETS} destination shards"
    return None


def _meeting(box: Box, others: Sequence[Box]) -> int:
    """How many of some boxes have elements in common with one."""
    return sum(1 for other in others if box.intersect(other).volume)


def _boxes(tensor: TensorSpec, side: Side) -> list[Box]:
    """The distinct shards of one side."""
    [tiling] = tensor.tilings(side)
    sample = np.unique(tiling.alike, return_index=True)[1]
    return list({box: None for rank in tiling.ranks[sample].tolist() for box, _ in tiling.joined(rank)})
