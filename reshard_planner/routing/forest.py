"""Forests: the trees of transfers that a strategy builds for one group of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from reshard_planner.box import Box
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role

ROOT = -1
"""Parent of a row that reads its source's own tile."""

NO_TILE = -1
"""Tile of a row that arrives in scratch."""


@dataclass(slots=True)
class Forest:
    """Pieces and transfer rows of one group, as growing columns; a row's parent comes before it.

    Attributes:
        tensors: positions of the group's tensors in the spec.
        boxes: box of each piece.
        piece: piece of each row.
        parent: row that brings the bytes, or ``ROOT``.
        src: sending rank.
        dst: receiving rank.
        medium: what the row goes over.
        role: what the row is for.
        tile: destination tile at ``dst``, or ``NO_TILE`` for scratch.
    """

    tensors: tuple[int, ...]
    boxes: list[Box] = field(default_factory=list)
    piece: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    medium: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    tile: list[int] = field(default_factory=list)

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
