"""The picture of a tensor's layouts on both sides, in plain characters for terminals and logs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from reshard_planner.render.layouts.cells import (
    Cell,
    LayoutCells,
    Limits,
    Panel,
    TensorCells,
    side_stores,
    tensor_cells,
)
from reshard_planner.render.layouts.scale import Axis, names_of, shown_cells
from reshard_planner.render.layouts.words import SIDE_NAMES, about, layout_head, notes_of, whose
from reshard_planner.render.text import format_count
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import SIDES

ATTEMPTS = (
    (Limits(8, 4, 16), 16),
    (Limits(6, 4, 8), 16),
    (Limits(4, 3, 6), 12),
    (Limits(3, 3, 4), 10),
)
"""What is shown, and characters of a list of ranks, in the order in which they are tried for their width."""

SIDE, SIDE_OF_MANY = 24, 14
"""Characters along the longer side of a grid where there is one, and where there are several."""

MAX_ASPECT = 3
"""Most that one side of a grid is longer than the other, unless its text needs it."""

GAP, PANEL_GAP = 5, 3
"""Characters between the two sides, and between panels."""

MIN_WIDTH = 40
"""Least width that lines of words are broken for."""


@dataclass(frozen=True, slots=True)
class Pen:
    """What all grids of a picture are written with.

    Attributes:
        cells: what is drawn.
        shape: of the tensor, in elements.
        names: the ranks of each group.
        width: characters for the panels of one side.
    """

    cells: TensorCells
    shape: tuple[int, ...]
    names: tuple[str, ...]
    width: int


def layouts_text(tensor: TensorSpec, width: int = 100) -> str:
    """Write who stores what of a tensor, before and after.

    Args:
        tensor: with layouts of placements, of storage or of both.
        width: characters of a line. Where both sides do not fit beside one another, they stand one above the
            other; where ranks do not even fit then, lines are longer.

    Returns:
        Lines that end in a newline, the same for the same tensor; in ASCII, unless names are not.
    """
    width = max(width, MIN_WIDTH)
    half, stores = (width - GAP) // 2, side_stores(tensor)
    for room, beside in ((half, True), (width, False)):
        for limits, named in ATTEMPTS:
            cells = tensor_cells(tensor, limits, stores)
            sides = _sides(tensor, Pen(cells, tensor.shape, names_of(cells, named), room))
            if max(map(_columns, (line for side in sides for line in side))) <= room:
                return _page(tensor, cells, sides, width, room if beside else 0)
    return _page(tensor, cells, sides, width, 0)


def _page(tensor: TensorSpec, cells: TensorCells, sides: list[list[str]], width: int, room: int) -> str:
    """Both sides below what they have in common; beside one another if there is room."""
    lines = [line for text in (*layout_head(tensor), *_legend(cells)) for line in _wrapped(text, width)]
    lines.append("")
    if room:
        rows = max(map(len, sides))
        left, right = ([*side, *[""] * (rows - len(side))] for side in sides)
        used = max(map(_columns, left))
        lines += [f"{_padded(a, used)}{' ' * GAP}{b}" for a, b in zip(left, right, strict=True)]
    else:
        lines += [*sides[0], "", *sides[1]]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _legend(cells: TensorCells) -> Iterator[str]:
    every = [cell for layout in (*cells.src, *cells.dst) for cell in shown_cells(layout)]
    notes = ["Cell: the ranks that store it."] if every else []
    if any(len(cell.ranks) > 1 for cell in every):
        notes.append("xN, N copies, ///: all of them store the same.")
    if any(not cell.ranks for cell in every):
        notes.append("nobody: in no storage.")
    if notes:
        yield " ".join(notes)
    if cells.across is not None and every:
        down = f" dim {cells.down} down," if cells.down is not None else ""
        yield f"Edges:{down} dim {cells.across} across, in elements; to scale where the text allows."


def _sides(tensor: TensorSpec, pen: Pen) -> list[list[str]]:
    sides = []
    for which, side in enumerate(SIDES):
        layouts, more = (pen.cells.src, pen.cells.dst)[which], pen.cells.more[which]
        lines = [SIDE_NAMES[side]]
        for at, layout in enumerate(layouts):
            words = [*about(layout, at, len(layouts) + more)]
            lines += [line for text in words for line in _wrapped(text, pen.width)]
            lines += _panels(layout, pen) if layout.panels else ["", "(no elements to store)"]
            lines += [
                line for text in notes_of(tensor, pen.cells, layout) for line in _wrapped(text, pen.width)
            ]
            lines.append("")
        if more:
            lines.append(f"... and {format_count(more, 'more layout')}")
        sides.append(lines[:-1] if not lines[-1] else lines)
    return sides


# ------------------------------------------------------------------------------------ grids


def _panels(layout: LayoutCells, pen: Pen) -> list[str]:
    """Panels beside one another as far as they fit."""
    down, across = _axes(layout, pen)
    blocks = [_panel(panel, down, across, pen) for panel in layout.panels]
    if layout.left_out:
        blocks.insert(len(blocks) // 2, ["", f"... {format_count(layout.left_out, 'panel')} left out ..."])
    per_line = max(1, (pen.width + PANEL_GAP) // (max(map(len, blocks[0])) + PANEL_GAP))
    first = layout.panels[0].place[:-1]
    run = sum(panel.place[:-1] == first for panel in layout.panels)
    if run <= per_line and not layout.left_out:
        per_line = run
    lines = []
    for start in range(0, len(blocks), per_line):
        some = blocks[start : start + per_line]
        rows, wide = max(map(len, some)), [max(map(len, block)) for block in some]
        for row in range(rows):
            parts = (
                (block[row] if row < len(block) else "").ljust(columns)
                for block, columns in zip(some, wide, strict=True)
            )
            lines.append((" " * PANEL_GAP).join(parts).rstrip())
    return lines


def _axes(layout: LayoutCells, pen: Pen) -> tuple[Axis, Axis]:
    """Rows and columns in whole characters, to scale as far as the ranks fit in."""
    cells = pen.cells
    sizes = [1 if dim is None else max(1, pen.shape[dim]) for dim in (cells.down, cells.across)]
    many = any(len(each.panels) > 1 for each in (*cells.src, *cells.dst))
    side = SIDE_OF_MANY if many else SIDE
    high, wide = (side * max(size / max(sizes), 1 / MAX_ASPECT) for size in sizes)
    every = list(shown_cells(layout))
    ends = [len(str(end)) for each in layout.columns for end in (each.lo, each.hi)]
    edge = max(ends) if cells.across is not None else 0
    marks = 4 if any(len(cell.ranks) > 1 for cell in every) else 2
    least = max(edge, *(len(text) for cell in every for text in _lines(cell, pen, 0))) + marks
    labels = max(len(str(end)) for each in layout.rows for end in (each.lo, each.hi)) + 1
    room = pen.width - len(layout.columns) - 1 - (labels if cells.down is not None else 0)
    extents = [each.hi - each.lo for each in layout.columns if not each.left_out]
    gap = max(3, edge + 1)
    need = least * sum(extents) / min(extents) + gap * (len(layout.columns) - len(extents))
    across = _whole(Axis.make(layout.columns, max(wide, min(need, room)), least, gap))
    lines = 1
    for line in zip(*(panel.cells for panel in layout.panels), strict=True):
        for row in line:
            for cell, length in zip(row, across.lengths, strict=True):
                if cell is not None:
                    lines = max(lines, len(_lines(cell, pen, int(length))))
    points = lines if cells.down is None else max(lines, high / 2)
    return _whole(Axis.make(layout.rows, points, lines, 1)), across


def _whole(axis: Axis) -> Axis:
    return Axis(axis.ranges, tuple(float(round(length)) for length in axis.lengths), axis.is_true)


def _lines(cell: Cell, pen: Pen, width: int) -> list[str]:
    """The text of a cell: on one line if that fits."""
    name, copies = pen.names[cell.group], len(cell.ranks)
    words = whose(cell.ranks, name)
    both = [words, name]
    if copies > 1:
        both = [f"{words} ({copies} copies)", f"{words}, x{copies}", f"{name} x{copies}"]
    for text in both:
        if len(text) + 2 <= width:
            return [text]
    return [name, f"x{copies}"] if copies > 1 else [name]


def _panel(panel: Panel, down: Axis, across: Axis, pen: Pen) -> list[str]:
    """One grid with the numbers at its edges, and its place in the other dimensions."""
    widths = [int(length) for length in across.lengths]
    frame = f"+{'+'.join('-' * width for width in widths)}+"
    rows = [frame]
    starts = [0]
    for line, length in zip(panel.cells, down.lengths, strict=True):
        filled = [_fill(cell, width, int(length), pen) for cell, width in zip(line, widths, strict=True)]
        rows += [f"|{'|'.join(parts)}|" for parts in zip(*filled, strict=True)]
        rows.append(frame)
        starts.append(len(rows) - 1)
    left = 0
    if pen.cells.down is not None:
        marks = dict(zip(starts, map(str, down.bounds), strict=True))
        left = max(map(len, marks.values())) + 1
        rows = [f"{marks.get(at, ''):>{left - 1}} {row}" for at, row in enumerate(rows)]
    if pen.cells.across is not None:
        rows.insert(0, _numbers(across, left))
    if panel.place:
        place = dict(panel.place)
        ranges = (
            f"{place[dim].lo}:{place[dim].hi}" if dim in place else ":" for dim in range(len(pen.shape))
        )
        rows = [*wrap(f"[{', '.join(ranges)}]", pen.width), *rows]
    wide = max(map(len, rows))
    return [row.ljust(wide) for row in rows]


def _numbers(across: Axis, left: int) -> str:
    """The bounds of the columns, each around its edge."""
    line = ""
    at = left
    for bound, width in zip(across.bounds, (*across.lengths, 0), strict=True):
        text = str(bound)
        line = f"{line.ljust(max(at - len(text) // 2, 0))}{text}"
        at += int(width) + 1
    return line


def _fill(cell: Cell | None, width: int, height: int, pen: Pen) -> list[str]:
    """The characters of a cell, with strokes around the text of replicas."""
    if cell is None:
        lines, stroke = ["..."[:width]], False
    else:
        lines, stroke = _lines(cell, pen, width), len(cell.ranks) > 1
    above = (height - len(lines)) // 2
    rows = [*[""] * above, *lines, *[""] * (height - above - len(lines))]
    return [_hatched(text, width) if stroke else text.center(width) for text in rows]


def _hatched(text: str, width: int) -> str:
    words = f" {text} " if text else ""
    return words.center(width, "/") if len(words) <= width else text.center(width)


# ------------------------------------------------------------------------------------ words


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of words; characters may be twice as wide."""
    return wrap(text, width if _columns(text) <= len(text) else width // 2)


def _columns(text: str) -> int:
    """Columns that a line takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))
