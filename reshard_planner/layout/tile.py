"""Tiles: the boxes that a rank stores, and where they lie in its local buffer."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_planner.box import Box


@dataclass(frozen=True, slots=True)
class Tile:
    """A box that a rank stores, and its place in the rank's local buffer.

    Attributes:
        box: the stored range in global element coordinates.
        offset: position of the box's first element in the buffer, in elements.
        strides: distance between neighbours per dimension in the buffer, in elements.
    """

    box: Box
    offset: int
    strides: tuple[int, ...]
