"""Tilings: who stores which boxes of one tensor under one layout, whichever way the layout says it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.layout.tile import Tile

Ints = NDArray[np.int64]

NOTHING = -1
"""Key of the atoms that none of the painted boxes has."""


@dataclass(frozen=True, slots=True)
class Painted:
    """Atoms coloured by the boxes that they lie in; boxes of one colouring are disjoint.

    Attributes:
        key: key of every atom, int64 of shape (atoms,), row-major; :data:`NOTHING` outside all boxes.
        ranks: ranks that store what has a key, ascending.
    """

    key: Ints
    ranks: Mapping[int, tuple[int, ...]]


class Tiling(Protocol):
    """Who stores which boxes of one tensor under one layout."""

    @property
    def ranks(self) -> Ints:
        """The ranks of the mesh in row-major order, shape (ranks,)."""
        ...

    @property
    def alike(self) -> Ints:
        """A number per rank, equal for ranks that store the same, shape (ranks,)."""
        ...

    def buffers(self, rank: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Number of the name, and shape in elements, of each local buffer of a rank of the mesh."""
        ...

    def local_tiles(self, rank: int) -> tuple[tuple[int, Tile], ...]:
        """The non-empty boxes of a rank in storage order, each with the position of its buffer."""
        ...

    def joined(self, rank: int) -> tuple[tuple[Box, tuple[int, ...]], ...]:
        """The boxes that plans know: neighbours joined wherever they lie, with positions in local_tiles."""
        ...

    def count(self, rank: int) -> int:
        """Number of the rank's joined boxes."""
        ...

    def containing(self, rank: int, box: Box) -> tuple[int, ...]:
        """Numbers of the rank's joined boxes that contain a non-empty box, ascending."""
        ...

    def cuts(self, dim: int) -> set[int]:
        """Where joined boxes begin or end along a dimension."""
        ...

    def paint(self, cuts: list[Ints], extents: tuple[int, ...]) -> tuple[Painted, ...]:
        """Colour the atoms between cuts along all dimensions; a box has all of its atoms in one colouring.

        Args:
            cuts: bounds of atoms per dimension, ascending; among them those of all boxes.
            extents: atoms per dimension.
        """
        ...


def cuts_of(tilings: Sequence[Tiling], shape: tuple[int, ...]) -> list[Ints]:
    """Where any of some tilings of one tensor cuts it, per dimension, ascending, with both of its ends."""
    return [
        np.array(sorted({0, size}.union(*(tiling.cuts(dim) for tiling in tilings))), dtype=np.int64)
        for dim, size in enumerate(shape)
    ]


def alike_ranks(ranks: Ints, key: Ints) -> dict[int, tuple[int, ...]]:
    """Ranks of every key, ascending."""
    order = np.lexsort((ranks, key))
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    ordered = ranks[order].tolist()
    return {
        int(key[order[start]]): tuple(ordered[start:stop])
        for start, stop in itertools.pairwise(bounds.tolist())
    }
