"""Chunks: what a unit of the schedule moves of each row's piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.tables import Pieces, Routes
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import byte_step

Ints = NDArray[np.int64]

MAX_EXACT = 2**52
"""Below this, quotients of integers may be taken as float64 and rounded down: faster, and as exact."""


def freeze_columns(holder: Any) -> None:
    """Make the columns of a frozen dataclass read-only."""
    for entry in fields(holder):
        column = getattr(holder, entry.name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class ElementColumns:
    """What chunks depend on in a tensor, as columns by position in the spec.

    Attributes:
        bits: bits of one element, int64 of shape (tensors,).
        ndim: number of dimensions, likewise.
        step: least number of neighbouring elements that fill whole bytes, likewise.
    """

    bits: Ints
    ndim: Ints
    step: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, tensors: Sequence[TensorSpec]) -> ElementColumns:
        """The columns of some tensors."""
        bits = [tensor.bits for tensor in tensors]
        steps = {size: byte_step(size) for size in set(bits)}
        return cls(
            np.array(bits, dtype=np.int64),
            np.array([len(tensor.shape) for tensor in tensors], dtype=np.int64),
            np.array([steps[size] for size in bits], dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowBoxes:
    """Per row, the box of its piece and the range along which its tree is cut.

    A row's parent always carries the piece of the whole tree; only copies carry a smaller one.

    Attributes:
        lo: first index of the row's piece per dimension, int64 of shape (rows, dims).
        hi: index past the last, likewise.
        dim: dimension along which the tree's piece is cut, -1 in a 0-d tensor, int64 of shape (rows,).
        start: first index of the tree's piece along it, likewise.
        extent: number of indices of the tree's piece along it, likewise.
    """

    lo: Ints
    hi: Ints
    dim: Ints
    start: Ints
    extent: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, routes: Routes, pieces: Pieces) -> RowBoxes:
        """The boxes of all rows.

        Raises:
            IndexError: if a row refers to a piece, a parent or a dimension that does not exist.
        """
        piece = routes.piece.astype(np.int64)
        parent = routes.parent.astype(np.int64)
        root = np.where(parent >= 0, piece[np.maximum(parent, 0)], piece) if len(piece) else piece
        return cls.at(pieces, piece, root)

    @classmethod
    def at(cls, pieces: Pieces, piece: Ints, root: Ints) -> RowBoxes:
        """The boxes of rows that carry ``piece`` in trees that carry ``root``."""
        dim = pieces.cut_dim[root].astype(np.int64)
        cut = dim >= 0
        start = np.zeros(len(piece), dtype=np.int64)
        extent = np.zeros(len(piece), dtype=np.int64)
        start[cut] = pieces.lo[root[cut], dim[cut]]
        extent[cut] = pieces.hi[root[cut], dim[cut]] - start[cut]
        return cls(pieces.lo[piece], pieces.hi[piece], dim, start, extent)

    def __len__(self) -> int:
        return len(self.dim)

    def ranges(
        self, row: Ints, chunk: Ints, n_chunks: Ints, ndim: Ints, step: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """What chunks leave of the pieces of some rows that are cut along a dimension.

        Args:
            row: the rows.
            chunk: chunk of each.
            n_chunks: number of chunks of each.
            ndim: dimensions of its tensor.
            step: least number of neighbouring elements that fill whole bytes.

        Returns:
            Positions among ``row`` that have a dimension to cut, and there first index and index past the
            last along it.
        """
        at = np.flatnonzero(self.dim[row] >= 0)
        row, chunk, n_chunks = row[at], chunk[at], n_chunks[at]
        dim = self.dim[row]
        start, extent = self.start[row], self.extent[row]
        if step.max(initial=1) > 1:
            align = np.where(dim == ndim[at] - 1, step[at], 1)
            first = align * share(extent // align, chunk, n_chunks)
            last = align * share(extent // align, chunk + 1, n_chunks)
        else:
            first = share(extent, chunk, n_chunks)
            last = share(extent, chunk + 1, n_chunks)
        low: Ints = np.maximum(self.lo[row, dim], start + first)
        high: Ints = np.maximum(low, np.minimum(self.hi[row, dim], start + last))
        return at, low, high

    def volumes(self) -> tuple[Ints, Ints]:
        """Elements of every row's whole piece, and of one index of it along the dimension that is cut."""
        volumes: Ints = np.prod(self.hi - self.lo, axis=1, dtype=np.int64)
        slices = volumes.copy()
        cut = np.flatnonzero(self.dim >= 0)
        extent = self.hi[cut, self.dim[cut]] - self.lo[cut, self.dim[cut]]
        slices[cut] //= np.maximum(1, extent)
        return volumes, slices


def share(extent: Ints, part: Ints, parts: Ints) -> Ints:
    """``floor(extent * part / parts)``, without products that exceed 64 bits, for ``part <= parts``."""
    if int(extent.max(initial=0)) * int(part.max(initial=0)) < MAX_EXACT:
        found: Ints = (extent * part / parts).astype(np.int64)
    else:
        found = extent // parts * part + extent % parts * part // parts
    return found
