"""Boxes of parameters in dense local buffers, built dimension by dimension.

Every fused buffer of training and inference frameworks is a grid: along each dimension it holds runs of
indices of the parameter, one after another, with indices of other parameters or padding between them. Its
tiles are the products of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from reshard_planner.box import Box
from reshard_planner.layout import Entry, Storage, StoredBuffer, Tile
from reshard_planner.layout.partition import row_major_strides

Run = tuple[int, int, int]
"""Where a run begins in the buffer, and its first and end index in the parameter, along one dimension."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What of one dimension of a parameter a buffer holds.

    Attributes:
        extent: extent of the whole buffer along the dimension, in elements.
        runs: what of it belongs to the parameter, in buffer order; empty for a buffer that has none of it.
    """

    extent: int
    runs: tuple[Run, ...]

    @classmethod
    def whole(cls, size: int) -> Cut:
        """All indices of a dimension and nothing else."""
        return cls(size, ((0, 0, size),))


def join(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Merge runs that continue one another in buffer and parameter, and leave out empty ones."""
    joined: list[Run] = []
    for at, lo, hi in runs:
        if lo == hi:
            continue
        if joined and joined[-1][2] == lo and joined[-1][0] + lo - joined[-1][1] == at:
            joined[-1] = (joined[-1][0], joined[-1][1], hi)
        else:
            joined.append((at, lo, hi))
    return tuple(joined)


def stored(
    shape: Sequence[int], cuts: Mapping[int, Cut], buffer: int = 0, *, single: bool = False
) -> StoredBuffer:
    """What one dense row-major buffer holds of a parameter.

    Args:
        shape: global shape of the parameter, in elements.
        cuts: what it holds along dimensions of which it does not hold everything.
        buffer: number of the buffer's name.
        single: whether the first dimension of the parameter, of which it holds one index, is none of the
            buffer, as with a buffer per expert.
    """
    per_dim = [cuts.get(dim) or Cut.whole(size) for dim, size in enumerate(shape)]
    extents = tuple(cut.extent for cut in per_dim)
    strides = row_major_strides(extents)
    tiles = []
    for runs in product(*(cut.runs for cut in per_dim)):
        lo = tuple(run[1] for run in runs)
        hi = tuple(run[2] for run in runs)
        offset = sum(run[0] * stride for run, stride in zip(runs, strides, strict=True))
        tiles.append(Tile(Box(lo, hi), offset, strides))
    return StoredBuffer(buffer, extents[1:] if single else extents, tuple(tiles))


def spread(entries: Sequence[Entry], size: int) -> Storage:
    """Storage of a mesh whose fastest axes count through the entries and whose other axes repeat them.

    Args:
        entries: one per coordinate of the fastest axes, row-major.
        size: number of ranks of the mesh, a multiple of ``len(entries)``.
    """
    numbers: dict[Entry, int] = {}
    entry_of = tuple(numbers.setdefault(entry, len(numbers)) for entry in entries)
    return Storage(numbers, entry_of * (size // len(entries)))
