"""Rectangles: where nodes and frames stand on a sheet."""

from __future__ import annotations

from dataclasses import dataclass

Point = tuple[float, float]
"""Distance from the left edge of a sheet, and from its upper one, in points."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle on a sheet, in points rightwards and downwards: its centre, width and height."""

    x: float
    y: float
    width: float
    height: float

    @classmethod
    def between(cls, left: float, right: float, top: float, bottom: float) -> Rectangle:
        """The one of these edges."""
        return cls((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)

    def moved(self, x: float, y: float) -> Rectangle:
        """The same, moved to the right and down."""
        return Rectangle(self.x + x, self.y + y, self.width, self.height)

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2
