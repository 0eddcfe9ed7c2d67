"""The sheet that a picture is drawn on: from points downwards to the attributes that graphviz takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.render.sheets.rectangle import Point, Rectangle

POINTS = 72
"""Points to an inch, in which graphviz takes sizes."""

FRAME = 11.0
"""Room between a frame and what is in it, in points."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet whose origin graphviz has in the lower left corner.

    Attributes:
        width: in points.
        height: in points.
    """

    width: float
    height: float

    @property
    def bounds(self) -> str:
        """Of the whole sheet."""
        return f"0,0,{self.width:.1f},{self.height:.1f}"

    def node(self, place: Rectangle) -> dict[str, str]:
        """Place and size of a node, whatever room graphviz thinks that its text takes."""
        return {
            "fixedsize": "shape",
            "pos": self._point((place.x, place.y)),
            "width": f"{place.width / POINTS:.3f}",
            "height": f"{place.height / POINTS:.3f}",
        }

    def frame(self, place: Rectangle, title: tuple[float, float]) -> dict[str, str]:
        """Place and size of a cluster, with its title of some width and height in the upper left corner."""
        lower, upper = self._point((place.left, place.bottom)), self._point((place.right, place.top))
        width, height = title
        return {
            "bb": f"{lower},{upper}",
            "lp": self._point((place.left + FRAME + width / 2, place.top + 5 + height / 2)),
            "lwidth": f"{width / POINTS:.2f}",
            "lheight": f"{height / POINTS:.2f}",
        }

    def edge(self, curve: Sequence[Point], tail: float = 0.0, head: float = 0.0) -> str:
        """Way of an edge that ends level, with arrows of some length at its ends where that is not 0."""
        points = list(curve)
        marks = []
        if tail:  # graphviz reads the mark of the tail before that of the head only
            marks.append(f"s,{self._point(points[0])}")
        if head:
            marks.append(f"e,{self._point(points[-1])}")
            points[-1] = _shortened(points[-1], points[-2], head)
        if tail:
            points[0] = _shortened(points[0], points[1], tail)
        return " ".join([*marks, *map(self._point, points)])

    def _point(self, point: Point) -> str:
        x, y = point
        return f"{x:.1f},{self.height - y:.1f}"


def _shortened(end: Point, before: Point, length: float) -> Point:
    """The end of a level line without its arrow."""
    return end[0] + (length if before[0] > end[0] else -length), end[1]
