"""The picture of a tensor's layouts on both sides, as SVG that needs no other program to be made.

Both sides stand side by side, to the same scale. A cell is a box that some ranks store; replicas are hatched
and say how many they are. Whoever points at a cell reads its ranks, box and bytes.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

from reshard_planner.render.dot import FAINT, FONT, INK
from reshard_planner.render.layouts.blocks import (
    Block,
    above,
    beside,
    number,
    padded,
    text_block,
    text_element,
    text_points,
)
from reshard_planner.render.layouts.cells import Cell, LayoutCells, Panel, TensorCells, tensor_cells
from reshard_planner.render.layouts.scale import (
    CELL_FONT,
    GAP_POINTS,
    LINE_POINTS,
    TICK_FONT,
    TINTS,
    Axis,
    Place,
    axes_of,
    names_of,
    shown_cells,
    tints_of,
)
from reshard_planner.render.layouts.words import SIDE_NAMES, about, layout_head, notes_of, whose
from reshard_planner.render.text import format_count, format_nbytes
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import SIDES, Side

NOTE_FONT, NOTE_CHARACTERS = 11, 76
"""Size of the font around grids, and length of a line."""

SIDE_WIDTH = 640
"""Width of a side in which panels stand beside one another, in points."""

MARGIN, MAX_WIDTH = 16, 1200
"""Room around the picture, and the width above which the sides stand one above the other, in points."""

NAMED, LISTED = 16, 200
"""Characters of a list of ranks in a cell, and in what it says when pointed at."""

STYLE = (
    f".layouts .faint{{fill:{FAINT}}}"
    ".layouts .cell:hover rect:first-of-type{stroke:#222;stroke-width:2.5}"
    "@media (prefers-color-scheme:dark){.layouts .paper{fill:#16181b}.layouts .ink{fill:#eee}"
    ".layouts .faint{fill:#aaa}.layouts .open{fill:#ddd}}"
)
"""Colours of text by class, and what follows the viewer's preference; cells stay light and keep dark text."""

_FAINT, _BOLD = f' fill="{FAINT}"', ' font-weight="bold"'


@dataclass(frozen=True, slots=True)
class Pen:
    """What all cells of a picture are drawn with.

    Attributes:
        cells: what is drawn.
        axes: rows and columns of every layout that has panels.
        hatch: id of the pattern that marks replicas, of this picture alone.
        tints: background per group of ranks.
        names: the ranks of each group, as short as cells are.
        lists: the same, as long as there is room beside a pointer.
    """

    cells: TensorCells
    axes: dict[Place, tuple[Axis, Axis]]
    hatch: str
    tints: tuple[str, ...]
    names: tuple[str, ...]
    lists: tuple[str, ...]


def layouts_svg(tensor: TensorSpec) -> str:
    """Draw who stores what of a tensor, before and after.

    Args:
        tensor: its layouts of one side stand one above the other.

    Returns:
        An SVG document without references to anything outside, the same for the same tensor. Cells are
        elements of class ``cell`` with the attributes ``data-ranks``, ``data-box`` and ``data-nbytes``.
    """
    cells = tensor_cells(tensor)
    digest = hashlib.sha256(
        repr((tensor.name, tensor.shape, *map(str, (*tensor.src, *tensor.dst)))).encode(
            "utf-8", "backslashreplace"
        )
    )
    names = names_of(cells, NAMED)
    pen = Pen(
        cells,
        axes_of(cells, tensor.shape, names),
        f"hatch-{digest.hexdigest()[:12]}",
        tints_of(cells),
        names,
        names_of(cells, LISTED),
    )
    sides = [_side(tensor, side, pen) for side in SIDES]
    body = beside([sides[0], _arrow(max(side.height for side in sides)), sides[1]], 18)
    if body.width > MAX_WIDTH - 2 * MARGIN:
        body = above([sides[0], _arrow_down(), sides[1]], 14)
    name, size = layout_head(tensor)
    head = [
        text_block(name, 17, more=_BOLD),
        text_block(size, 13),
        *_legend(pen, tensor, max(body.width, 600)),
    ]
    page = padded(above([above(head, 6), body], 16), MARGIN, 14, MARGIN, MARGIN)
    width, height = number(page.width), number(page.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="layouts" role="img" width="{width}"'
        f' height="{height}" viewBox="0 0 {width} {height}" font-family="{FONT}" fill="{INK}">'
        f"<title>{html.escape(name)}</title><style>{STYLE}</style>{_pattern(pen.hatch)}"
        f'<rect class="paper" width="{width}" height="{height}" fill="white"/>{"".join(page.parts)}</svg>\n'
    )


def _pattern(name: str) -> str:
    return (
        f'<defs><pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect width="1.6" height="7" fill="#444" fill-opacity="0.38"/>'
        "</pattern></defs>"
    )


# ------------------------------------------------------------------------------------ around the grids


def _legend(pen: Pen, tensor: TensorSpec, width: float) -> Iterator[Block]:
    """What marks mean, of those that occur."""
    every = [cell for layout in (*pen.cells.src, *pen.cells.dst) for cell in shown_cells(layout)]
    items = [_swatch(TINTS[0], "3", "", "a box that rank 3 stores")] if every else []
    if any(len(cell.ranks) > 1 for cell in every):
        items.append(_swatch(TINTS[0], "4-7 x4", pen.hatch, "4 copies: ranks 4 to 7 all store it"))
    if any(not cell.ranks for cell in every):
        items.append(_swatch("none", "nobody", "", "in no storage"))
    if any(each.left_out for axes in pen.axes.values() for axis in axes for each in axis.ranges):
        dots = Block(GAP_POINTS, 20, (_dots(GAP_POINTS / 2, 10, down=False),))
        items.append(beside([dots, text_block("left out", NOTE_FONT)], 4))
    yield beside(items, 16)
    notes = []
    if tensor.shape and every:
        true = all(axis.is_true for axes in pen.axes.values() for axis in axes)
        rest = "" if true else "; ranges too short for their text are drawn longer"
        notes.append(f"Numbers at the edges: elements. Lengths are to scale along each dimension{rest}.")
    if every:
        notes.append(
            "Tints only set neighbours apart; they do not say which box feeds which. Point at a cell for its"
            " ranks, box and bytes."
        )
    for line in wrap(" ".join(notes), int(width / NOTE_FONT / 0.55)):
        yield text_block(line, NOTE_FONT, "faint", _FAINT)


def _swatch(tint: str, text: str, hatch: str, meaning: str) -> Block:
    width = text_points(text, NOTE_FONT) + 10
    parts = [_rect(0, 0, width, 18, tint, dashed=tint == "none")]
    if hatch:
        parts.append(_rect(0, 0, width, 18, f"url(#{hatch})"))
    parts.append(_centred(width / 2, 13, text, NOTE_FONT, halo=bool(hatch), is_open=tint == "none"))
    return beside([Block(width, 20, tuple(parts)), padded(text_block(meaning, NOTE_FONT), 0, 2)], 6)


def _arrow(height: float) -> Block:
    y = min(height / 2, 150)
    head = f'<path class="faint" d="M0 {number(y - 3)}h34v-7l16 10-16 10v-7h-34z"{_FAINT}/>'
    label = text_element(25, y - 16, "reshard", NOTE_FONT, "faint", f' text-anchor="middle"{_FAINT}')
    return Block(50, y + 12, (head, label))


def _arrow_down() -> Block:
    head = f'<path class="faint" d="M17 2v20h-7l10 14 10-14h-7v-20z"{_FAINT}/>'
    return Block(90, 40, (head, text_element(38, 22, "reshard", NOTE_FONT, "faint", _FAINT)))


def _side(tensor: TensorSpec, side: Side, pen: Pen) -> Block:
    """One side: each layout with its panels, and what they do not show."""
    layouts, more = (
        (pen.cells.src, pen.cells.more[0]) if side == "src" else (pen.cells.dst, pen.cells.more[1])
    )
    blocks = [text_block(SIDE_NAMES[side], 14, more=_BOLD)]
    for at, layout in enumerate(layouts):
        head = [
            text_block(line, NOTE_FONT)
            for each in about(layout, at, len(layouts) + more)
            for line in wrap(each, NOTE_CHARACTERS)
        ]
        notes = [
            text_block(line, NOTE_FONT, "faint", _FAINT)
            for each in notes_of(tensor, pen.cells, layout)
            for line in wrap(each, NOTE_CHARACTERS)
        ]
        blocks.append(above([above(head), *_panels(layout, (side, at), pen), above(notes)], 6))
    if more:
        blocks.append(text_block(f"... and {format_count(more, 'more layout')}", NOTE_FONT))
    return above(blocks, 12)


# ------------------------------------------------------------------------------------ grids


def _panels(layout: LayoutCells, at: Place, pen: Pen) -> Iterator[Block]:
    """Lines of panels, or what stands in their place."""
    if not layout.panels:
        frame = _rect(0, 0, 190, 40, "none", dashed=True)
        yield Block(192, 42, (frame, _centred(95, 24, "no elements to store", CELL_FONT, is_open=True)))
        return
    blocks = [_panel(panel, pen.axes[at], pen) for panel in layout.panels]
    if layout.left_out:
        text = f"... {format_count(layout.left_out, 'panel')} left out ..."
        blocks.insert(len(blocks) // 2, padded(text_block(text, NOTE_FONT), 4, 40))
    fitting = max(1, int(SIDE_WIDTH // (blocks[0].width + 12)))
    first = layout.panels[0].place[:-1]
    run = sum(panel.place[:-1] == first for panel in layout.panels)
    per_line = run if run <= fitting and not layout.left_out else fitting
    for start in range(0, len(blocks), per_line):
        yield beside(blocks[start : start + per_line], 12)


def _panel(panel: Panel, axes: tuple[Axis, Axis], pen: Pen) -> Block:
    """One grid with its cells, the numbers at its edges, and its place in the other dimensions."""
    down, across = axes
    columns = list(zip(across.edges[:-1], across.lengths, across.ranges, strict=True))
    cells, marks = [], list(_ticks(pen.cells, down, across))
    for line, y, height in zip(panel.cells, down.edges[:-1], down.lengths, strict=True):
        for cell, (x, width, found) in zip(line, columns, strict=True):
            if cell is None:
                marks.append(_dots(x + width / 2, y + height / 2, down=not found.left_out))
            else:
                cells.append((cell, (x, y, width, height)))
    words = all(_fits(_who(cell, pen, words=True), place[2]) for cell, place in cells)
    boxes = pen.cells.across is not None and all(
        len(_lines(cell, place, pen, words=words, boxes=True)) * LINE_POINTS + 6 <= place[3]
        and _fits(max(_lines(cell, place, pen, words=words, boxes=True), key=len), place[2])
        for cell, place in cells
    )
    marks.extend(_cell(cell, place, pen, words=words, boxes=boxes) for cell, place in cells)
    labels = max(text_points(str(at), TICK_FONT) for at in down.bounds)
    left = 8 if pen.cells.down is None else labels + 24
    top = 34 if pen.cells.across is not None else 4
    grid = padded(Block(across.edges[-1], down.edges[-1], tuple(marks)), left, top, 14, 6)
    if not panel.place:
        return grid
    place = ", ".join(f"dim {dim} = {each.lo}:{each.hi}" for dim, each in panel.place)
    return above([*(text_block(line, NOTE_FONT, more=_BOLD) for line in wrap(place, 40)), grid], 2)


def _ticks(cells: TensorCells, down: Axis, across: Axis) -> Iterator[str]:
    """Names of the dimensions and numbers of elements along both edges of a grid."""
    middle, end = (f'{_FAINT} text-anchor="{anchor}"' for anchor in ("middle", "end"))
    if cells.across is not None:
        yield text_element(across.edges[-1] / 2, -21, f"dim {cells.across}", NOTE_FONT, "faint", middle)
        for x, at in zip(across.edges, across.bounds, strict=True):
            yield text_element(x, -5, str(at), TICK_FONT, "faint", middle)
    if cells.down is not None:
        for y, at in zip(down.edges, down.bounds, strict=True):
            yield text_element(-5, y + 3.5, str(at), TICK_FONT, "faint", end)
        x = max(text_points(str(at), TICK_FONT) for at in down.bounds) + 10
        turned = f' transform="translate({number(-x)} {number(down.edges[-1] / 2)}) rotate(-90)"'
        yield text_element(0, 0, f"dim {cells.down}", NOTE_FONT, "faint", turned + middle)


def _lines(
    cell: Cell, place: tuple[float, float, float, float], pen: Pen, *, words: bool, boxes: bool
) -> list[str]:
    """What is written in a cell, as far as there is room."""
    first, count = _who(cell, pen, words=words), len(cell.ranks)
    box = [str(cell.box)] if boxes else []
    if count < 2:
        return [first, *box]
    if words and _fits(f"{first} ({count} copies)", place[2]):
        return [f"{first} ({count} copies)", *box]
    copies = f"{count} copies"
    return [first, copies if _fits(copies, place[2]) else f"x{count}", *box]


def _cell(cell: Cell, place: tuple[float, float, float, float], pen: Pen, *, words: bool, boxes: bool) -> str:
    """One cell with what it says when pointed at."""
    x, y, width, height = place
    copies = len(cell.ranks)
    ranks = pen.lists[cell.group] if copies else ""
    stored = f"{'rank' if copies == 1 else 'ranks'} {ranks}" if copies else "nobody stores this"
    each = f" in each of {copies} replicas" if copies > 1 else ""
    box = str(cell.box)
    title = f"{stored}\nbox {box}\n{format_count(cell.nbytes, 'byte')} ({format_nbytes(cell.nbytes)}){each}"
    parts = [_rect(x, y, width, height, pen.tints[cell.group] if copies else "none", dashed=not copies)]
    if copies > 1:
        parts.append(_rect(x, y, width, height, f"url(#{pen.hatch})"))
    lines = _lines(cell, place, pen, words=words, boxes=boxes)
    base = y + height / 2 + 4 - (len(lines) - 1) * LINE_POINTS / 2
    for at, line in enumerate(lines):
        mark = {"halo": copies > 1, "bold": at == 0, "is_open": not copies}
        parts.append(_centred(x + width / 2, base + at * LINE_POINTS, line, CELL_FONT, **mark))
    data = f'data-ranks="{ranks}" data-box="{box}" data-nbytes="{cell.nbytes}"'
    return f'<g class="cell" {data}><title>{html.escape(title)}</title>{"".join(parts)}</g>'


def _who(cell: Cell, pen: Pen, *, words: bool) -> str:
    name = pen.names[cell.group]
    return whose(cell.ranks, name) if words else name


def _fits(text: str, width: float) -> bool:
    return text_points(text, CELL_FONT) + 6 <= width


def _dots(x: float, y: float, *, down: bool) -> str:
    steps = [(0, at) if down else (at, 0) for at in (-6, 0, 6)]
    return "".join(
        f'<circle class="faint" cx="{number(x + dx)}" cy="{number(y + dy)}" r="1.7"{_FAINT}/>'
        for dx, dy in steps
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        f' fill="{fill}" stroke="{FAINT}"{dashes}/>'
    )


def _centred(
    x: float,
    y: float,
    text: str,
    points: float,
    *,
    halo: bool = False,
    bold: bool = False,
    is_open: bool = False,
) -> str:
    """A line of text around x, dark on a cell and as all other text where there is no background."""
    more = ' text-anchor="middle"'
    if halo:
        more += ' stroke="white" stroke-width="3.5" stroke-linejoin="round" paint-order="stroke"'
    return text_element(x, y, text, points, "open" if is_open else "name", more + _BOLD * bold)
