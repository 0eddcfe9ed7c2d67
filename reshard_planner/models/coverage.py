"""Coverage: what of a model is planned, and what of the local buffers is padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.layout import Layout, Mesh
from reshard_planner.layout.tiling import NOTHING, cuts_of
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.values import Side

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SideCoverage:
    """One side of all tensors of a spec.

    Attributes:
        nbytes: bytes of all tensors, each once, in the side's dtypes.
        covered_nbytes: those of them that some rank of the side stores.
        stored_nbytes: bytes in the tiles of all ranks, copies counted each.
        buffers_nbytes: bytes of the local buffers of all ranks.
    """

    nbytes: int
    covered_nbytes: int
    stored_nbytes: int
    buffers_nbytes: int

    @property
    def padding_nbytes(self) -> int:
        """Bytes of local buffers that no tile takes; they are never sent and never written."""
        return self.buffers_nbytes - self.stored_nbytes


def measure_coverage(spec: ReshardSpec, side: Side) -> SideCoverage:
    """Add up what the ranks of one side store.

    Args:
        spec: the tensors.
        side: which of their layouts.
    """
    known: dict[tuple[tuple[Layout, ...], tuple[int, ...]], int] = {}
    stored: dict[tuple[Layout, tuple[int, ...]], int] = {}
    total = covered = in_tiles = 0
    for tensor in spec.tensors:
        bits = DTYPE_BITS[tensor.side_dtype(side)]
        layouts = tensor.layouts(side)
        if (layouts, tensor.shape) not in known:
            known[layouts, tensor.shape] = _covered(tensor, side)
        total += prod(tensor.shape) * bits // 8
        covered += known[layouts, tensor.shape] * bits // 8
        for layout in layouts:
            if (layout, tensor.shape) not in stored:
                stored[layout, tensor.shape] = _in_tiles(layout, tensor.shape)
            in_tiles += stored[layout, tensor.shape] * bits // 8
    return SideCoverage(total, covered, in_tiles, _buffers_nbytes(spec.tensors, side))


def _covered(tensor: TensorSpec, side: Side) -> int:
    """Elements that some rank stores."""
    tilings = tensor.tilings(side)
    cuts = cuts_of(tilings, tensor.shape)
    extents = tuple(len(cut) - 1 for cut in cuts)
    held: NDArray[np.bool_] = np.zeros(prod(extents), dtype=np.bool_)
    for tiling in tilings:
        for painted in tiling.paint(cuts, extents):
            held |= painted.key != NOTHING
    volume = np.ones(extents, dtype=np.int64)
    for dim, cut in enumerate(cuts):
        along = [1] * len(extents)
        along[dim] = -1
        volume = volume * np.diff(cut).reshape(along)
    return int(volume.reshape(-1)[held].sum())


def _in_tiles(layout: Layout, shape: tuple[int, ...]) -> int:
    """Elements in the tiles of all ranks."""
    tiling = layout.tiling(shape)
    _, sample, copies = np.unique(tiling.alike, return_index=True, return_counts=True)
    each = [sum(box.volume for box, _ in tiling.joined(rank)) for rank in tiling.ranks[sample].tolist()]
    return sum(int(number) * elements for number, elements in zip(copies, each, strict=True))


def _buffers_nbytes(tensors: Sequence[TensorSpec], side: Side) -> int:
    """Bytes of every local buffer of every rank, once however many tensors lie in it."""
    total = 0
    sizes: dict[tuple[Layout, tuple[int, ...]], dict[int, Ints]] = {}
    counted: dict[tuple[str, Mesh], NDArray[np.bool_]] = {}
    for tensor in tensors:
        bits = DTYPE_BITS[tensor.side_dtype(side)]
        for layout, names in zip(tensor.layouts(side), tensor.buffers(side), strict=True):
            if (layout, tensor.shape) not in sizes:
                sizes[layout, tensor.shape] = _buffer_sizes(layout, tensor.shape)
            for number, elements in sizes[layout, tensor.shape].items():
                key = names[number], layout.mesh
                fresh = elements >= 0
                if key in counted:
                    fresh &= ~counted[key]
                    counted[key] |= fresh
                else:
                    counted[key] = fresh
                total += int(elements[fresh].sum()) * bits // 8
    return total


def _buffer_sizes(layout: Layout, shape: tuple[int, ...]) -> dict[int, Ints]:
    """Elements of every rank's buffer of each number, -1 for ranks without it."""
    tiling = layout.tiling(shape)
    _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
    found: dict[int, Ints] = {}
    for kind, rank in enumerate(tiling.ranks[sample].tolist()):
        for number, extents in tiling.buffers(rank):
            column = found.setdefault(number, np.full(len(sample), -1, dtype=np.int64))
            column[kind] = prod(extents)
    return {number: column[alike] for number, column in found.items()}
