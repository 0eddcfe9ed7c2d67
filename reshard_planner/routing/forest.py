"""Forests: the trees of transfers that a strategy builds for one geometry, or for part of its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.demand import Member
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]

ROOT = -1
"""Parent of a row that reads its source's own tile."""

NO_TILE = -1
"""Tile of a row that arrives in scratch."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Pieces and transfer rows of some tensors, as columns; a row's parent comes before it.

    Attributes:
        members: the tensors. The first member's ranks stand for themselves; the others are the same
            transfers between renamed ranks.
        lo: first index of each piece, shape (pieces, dims).
        hi: index past the last, likewise.
        piece: piece of each row.
        parent: row that brings the bytes, or ``ROOT``.
        src: sending rank.
        dst: receiving rank.
        medium: what the row goes over.
        role: what the row is for.
        tile: destination tile at ``dst``, or ``NO_TILE`` for scratch.
    """

    members: tuple[Member, ...]
    lo: Ints
    hi: Ints
    piece: Ints
    parent: Ints
    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    tile: Ints

    def __post_init__(self) -> None:
        for column in fields(self)[1:]:
            getattr(self, column.name).setflags(write=False)

    def nbytes(self, bits: int) -> Ints:
        """Bytes of each row in one tensor, int64 of shape (rows,), where an element has ``bits`` bits."""
        sizes: Ints = np.prod(self.hi - self.lo, axis=1, dtype=np.int64) * bits // 8
        return sizes[self.piece]

    @property
    def tensor_count(self) -> int:
        """Number of tensors of all members."""
        return sum(len(member.tensors) for member in self.members)


@dataclass(slots=True)
class ForestBuilder:
    """A forest that grows row by row; fields as in :class:`Forest`."""

    members: tuple[Member, ...]
    boxes: list[Box] = field(default_factory=list)
    piece: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    medium: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    tile: list[int] = field(default_factory=list)

    def build(self) -> Forest:
        """The forest so far."""
        dims = max((box.ndim for box in self.boxes), default=0)
        shape = (len(self.boxes), dims)
        return Forest(
            self.members,
            np.array([box.lo for box in self.boxes], dtype=np.int64).reshape(shape),
            np.array([box.hi for box in self.boxes], dtype=np.int64).reshape(shape),
            *(
                np.array(getattr(self, name), dtype=np.int64)
                for name in ("piece", "parent", "src", "dst", "medium", "role", "tile")
            ),
        )

    def add_piece(self, box: Box) -> int:
        """Add a piece and return its number."""
        self.boxes.append(box)
        return len(self.boxes) - 1

    def add(self, piece: int, parent: int, src: int, dst: int, medium: Medium, role: Role, tile: int) -> int:
        """Add a row and return its number."""
        self.piece.append(piece)
        self.parent.append(parent)
        self.src.append(src)
        self.dst.append(dst)
        self.medium.append(medium)
        self.role.append(role)
        self.tile.append(tile)
        return len(self.piece) - 1

    def deliver(
        self, piece: int, parent: int, src: int, dst: int, medium: Medium, role: Role, tiles: SideTiles
    ) -> int:
        """Move a piece into the destination tiles of a rank that needs it.

        It travels into the first of them; the others are filled by copies within the rank.
        Returns the row that brings it.
        """
        numbers = tiles.containing(dst, self.boxes[piece])
        row = self.add(piece, parent, src, dst, medium, role, numbers[0])
        for number in numbers[1:]:
            self.add(piece, row, dst, dst, Medium.LOCAL, Role.COPY, number)
        return row
