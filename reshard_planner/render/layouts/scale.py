"""How long, and in which tint, the ranges and cells of a layout picture are drawn.

All grids of a picture have axes of one length, so that equal ranges of both sides are equally long, as far as
each has room for the ranks that are written in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reshard_planner.render.layouts.blocks import text_points
from reshard_planner.render.layouts.cells import Cell, LayoutCells, Range, TensorCells
from reshard_planner.render.layouts.words import short_ranks
from reshard_planner.spec.values import SIDES, Side

SIDE_POINTS, SIDE_POINTS_OF_MANY = 300, 140
"""Longer side of a grid where there is one, and where there are several."""

MAX_SIDE_POINTS = 560
"""Longest side that a short range makes a grid grow to, to stay to scale."""

MAX_ASPECT = 3
"""Most that one side of a grid is longer than the other, unless its text needs it."""

LINE_POINTS, CELL_FONT, TICK_FONT, GAP_POINTS = 16, 12, 11, 26
"""Height of a line of text in a cell, fonts there and at the edges, and room for what is left out."""

TINTS = ("#CFE6F5", "#F7DCC8", "#CDEBDF", "#F3DCE9", "#FBF0C8", "#E4E4F7", "#E8E8E8")
"""Backgrounds of cells, light shades of colours that colour-blind people tell apart."""


Place = tuple[Side, int]
"""Side of a layout, and its number there."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the grids of one layout.

    Attributes:
        ranges: along it.
        lengths: drawn length of each, in points.
        is_true: whether the lengths of those shown are to scale.
    """

    ranges: tuple[Range, ...]
    lengths: tuple[float, ...]
    is_true: bool

    @classmethod
    def make(cls, ranges: tuple[Range, ...], points: float, least: float, gap: float) -> Axis:
        """Share out ``points``, ``gap`` for what is left out and at least ``least`` for every other range."""
        gaps = sum(each.left_out > 0 for each in ranges)
        shown = sum(each.hi - each.lo for each in ranges if not each.left_out)
        per_index = max(0.0, points - gaps * gap) / max(1, shown)
        lengths = tuple(
            float(gap) if each.left_out else max(least, (each.hi - each.lo) * per_index) for each in ranges
        )
        ratios = [
            length / (each.hi - each.lo)
            for each, length in zip(ranges, lengths, strict=True)
            if not each.left_out
        ]
        return cls(ranges, lengths, not ratios or max(ratios) < 1.01 * min(ratios))

    @property
    def edges(self) -> list[float]:
        """Where each range begins, and where the last one ends, in points."""
        edges = [0.0]
        for length in self.lengths:
            edges.append(edges[-1] + length)
        return edges

    @property
    def bounds(self) -> list[int]:
        """The same in elements."""
        return [self.ranges[0].lo, *(each.hi for each in self.ranges)]


def axes_of(
    cells: TensorCells, shape: tuple[int, ...], names: Sequence[str]
) -> dict[Place, tuple[Axis, Axis]]:
    """Rows and columns of every layout that has panels, by side and number.

    Args:
        cells: what is drawn.
        shape: of the tensor, in elements.
        names: what is written in cells, per group.
    """
    drawn: dict[Place, LayoutCells] = {
        (side, at): layout
        for side, layouts in zip(SIDES, (cells.src, cells.dst), strict=True)
        for at, layout in enumerate(layouts)
        if layout.panels
    }
    least = {place: _least(layout, cells, names) for place, layout in drawn.items()}
    sizes = [1 if dim is None else max(1, shape[dim]) for dim in (cells.down, cells.across)]
    many = any(len(layout.panels) > 1 for layout in drawn.values())
    side = SIDE_POINTS_OF_MANY if many else SIDE_POINTS
    points = [side * max(size / max(sizes), 1 / MAX_ASPECT) for size in sizes]
    if cells.down is None:
        points[0] = 44
    if cells.across is None:
        points[1] = 100
    for place, layout in drawn.items():
        for axis, ranges in enumerate((layout.rows, layout.columns)):
            extents = [each.hi - each.lo for each in ranges if not each.left_out]
            need = least[place][axis] * sum(extents) / min(extents)
            gaps = (GAP_POINTS, least[place][2])[axis] * (len(ranges) - len(extents))
            points[axis] = max(points[axis], min(need + gaps, MAX_SIDE_POINTS))
    return {
        place: (
            Axis.make(layout.rows, points[0], least[place][0], GAP_POINTS),
            Axis.make(layout.columns, points[1], *least[place][1:]),
        )
        for place, layout in drawn.items()
    }


def _least(layout: LayoutCells, cells: TensorCells, names: Sequence[str]) -> tuple[float, float, float]:
    """Height and width that every cell's text and the numbers at the edges fit in, and width of a gap."""
    every = list(shown_cells(layout))
    lines = 2 if any(len(cell.ranks) > 1 for cell in every) else 1
    texts = [f"x{len(cell.ranks)}" for cell in every] + [names[cell.group] for cell in every]
    room = max(text_points(text, CELL_FONT) for text in texts)
    ends = [str(end) for each in layout.columns for end in (each.lo, each.hi)]
    number = max(text_points(end, TICK_FONT) for end in ends) if cells.across is not None else 0
    return LINE_POINTS * lines + 6, max(room, number) + 8, max(GAP_POINTS, number + 6)


def tints_of(cells: TensorCells) -> tuple[str, ...]:
    """A tint per group: another one each if they suffice, else another one than those beside and above."""
    count = len(cells.groups)
    if count <= len(TINTS):
        return TINTS[:count]
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for layout in (*cells.src, *cells.dst):
        for panel in layout.panels:
            columns = zip(*panel.cells, strict=True)
            for one, other in (pair for line in (*panel.cells, *columns) for pair in pairwise(line)):
                if one is not None and other is not None:
                    neighbours[one.group].add(other.group)
                    neighbours[other.group].add(one.group)
    tints: list[str] = []
    for group, beside in enumerate(neighbours):
        taken = {tints[other] for other in beside if other < group}
        order = [TINTS[(group + step) % len(TINTS)] for step in range(len(TINTS))]
        tints.append(next((tint for tint in order if tint not in taken), order[0]))
    return tuple(tints)


def names_of(cells: TensorCells, limit: int) -> tuple[str, ...]:
    """The ranks of every group, shortened to some characters."""
    return tuple(short_ranks(ranks, limit) if ranks else "nobody" for ranks in cells.groups)


def shown_cells(layout: LayoutCells) -> Iterator[Cell]:
    """The cells of all panels of a layout."""
    for panel in layout.panels:
        for line in panel.cells:
            yield from (cell for cell in line if cell is not None)
