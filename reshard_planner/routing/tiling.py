"""Which destination tile every row fills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.routing.forest import Forest
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]


def fill_tiles(forest: Forest, sample: TensorSpec) -> Forest:
    """The forest with the first destination tile of every row, and copies within the rank for further ones.

    Args:
        forest: rows that each bring a piece to a rank that needs it.
        sample: tensor of the forest's first member.
    """
    tiles = SideTiles(sample, "dst")
    single = np.zeros(int(forest.dst.max(initial=-1)) + 1, dtype=bool)
    used = np.unique(forest.dst)
    single[used] = [tiles.count(rank) == 1 for rank in used.tolist()]
    rows = np.flatnonzero(~single[forest.dst])
    if not len(rows):
        return forest
    tile = np.zeros(len(forest.piece), dtype=np.int64)
    copies: list[tuple[int, int]] = []
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    for row, piece, rank in zip(
        rows.tolist(), forest.piece[rows].tolist(), forest.dst[rows].tolist(), strict=True
    ):
        if (rank, piece) not in known:
            box = Box(tuple(forest.lo[piece].tolist()), tuple(forest.hi[piece].tolist()))
            known[rank, piece] = tiles.containing(rank, box)
        first, *others = known[rank, piece]
        tile[row] = first
        copies.extend((row, other) for other in others)
    if not copies:
        return replace(forest, tile=tile)
    parent, other = np.array(copies, dtype=np.int64).T
    rank = forest.dst[parent]
    same = np.full(len(parent), Medium.LOCAL, dtype=np.int64)
    return replace(
        forest,
        piece=np.concatenate((forest.piece, forest.piece[parent])),
        parent=np.concatenate((forest.parent, parent)),
        src=np.concatenate((forest.src, rank)),
        dst=np.concatenate((forest.dst, rank)),
        medium=np.concatenate((forest.medium, same)),
        role=np.concatenate((forest.role, np.full(len(parent), Role.COPY, dtype=np.int64))),
        tile=np.concatenate((tile, other)),
    )
