"""The picture of a tensor's layouts on both sides, as graphviz DOT.

Each layout is a grid: the tensor, cut wherever one of its shards ends, to scale within limits. A cell names
the ranks that store it and its box. Tensors of more than two dimensions are drawn as several grids, one per
range of their leading dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from reshard_planner.layout import Layout, Partition, Tiling
from reshard_planner.layout.intervals import length
from reshard_planner.layout.tiling import cuts_of
from reshard_planner.render.dot import FAINT, html_text, new_graph
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_shape, plain
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side

MAX_RANGES = 8
"""Rows or columns of a grid above which its middle is left out."""

MAX_RANGES_OF_MANY = 4
"""The same where a layout has several grids."""

MAX_GRIDS = 16
"""Grids of a layout above which the middle ones are left out."""

GRIDS_PER_LINE, LINE_WIDTH_POINTS = 4, 640
"""Grids that stand side by side, and the width at which fewer do."""

MAX_CELLS = 2**16
"""Most cells of a layout by storage that are looked at."""

MAX_LAYOUTS = 4
"""Layouts of a side above which the rest are only counted."""

SIDE_POINTS, SIDE_POINTS_OF_MANY = 270, 110
"""Longer side of a grid where there is one, and where there are several, in points."""

MAX_SIDE_POINTS = 640
"""Longest side, unless the least cells alone are longer."""

MAX_GROWTH = 1.3
"""Most that a side grows to keep the shape where the other one grows to hold the text of its least cell."""

MAX_ASPECT = 3
"""Most that one side of a grid is longer than the other."""

CHARACTER_POINTS, LINE_POINTS, GAP_POINTS = 5.6, 14, 24
"""Room for a character, for a line of text, and for what is left out."""

TINTS = ("#CFE6F5", "#F7DCC8", "#CDEBDF", "#F3DCE9", "#FBF0C8", "#E4E4F7", "#E8E8E8")
"""Backgrounds of cells, light shades of colours that colour-blind people tell apart."""

Range = tuple[int, int, int]
"""First index, index past the last, and the shard that they belong to."""

Stores = dict[tuple[int, ...], list[int]]
"""Ranks by the shards that they store, one per dimension."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One drawn side of a grid.

    Attributes:
        ranges: its ranges in order, with None in place of those that are left out.
        points: drawn length of each.
    """

    ranges: tuple[Range | None, ...]
    points: tuple[int, ...]


def layouts_dot(tensor: TensorSpec) -> str:
    """Draw who stores what of a tensor, before and after.

    Args:
        tensor: its layouts of one side stand one above the other.

    Returns:
        DOT text, the same for the same tensor.
    """
    dtypes = " to ".join(dict.fromkeys((tensor.dtype, tensor.dst_dtype)))
    head = f"Layouts of {plain(tensor.name)}: {format_shape(tensor.shape)} {dtypes}"
    notes = (
        "Cell: the ranks that store it, and its box as lo:hi per dimension, in elements.",
        "xN (thick frame): N ranks store the same. Cells of the same ranks have the same tint.",
        "Sizes are to scale as far as the text allows.",
    )
    rows = [
        _font(f"{head}, {format_nbytes(tensor.nbytes)}", 16),
        *(_font(note, 11) for note in notes),
    ]
    graph = new_graph(
        "layouts", label=f"<{_stack(rows, 'legend')}>", labelloc="t", labeljust="l", ranksep="0.8"
    )
    sides: tuple[tuple[str, Side], ...] = (("source", "src"), ("destination", "dst"))
    for name, side in sides:
        graph.node(
            name,
            label=f"<{_stack(_side(name, tensor, side), name)}>",
            shape="plain",
            id=name,
            tooltip=name,
            **{"class": "layouts"},
        )
    graph.edge("source", "destination", label="reshard", penwidth="2", id="reshard", tooltip="reshard")
    return str(graph.source)


def _side(name: str, tensor: TensorSpec, side: Side) -> Iterator[str]:
    """Lines of one side: each layout with its grids, and what they do not show."""
    yield f"<B>{_font(name, 14)}</B>"
    layouts = tensor.layouts(side)
    for layout in layouts[:MAX_LAYOUTS]:
        ranks = format_ranks(sorted(layout.mesh.ranks))
        yield _font(f"{plain(str(layout), 90)} over ranks {ranks}", 11)
        yield from _layout(tensor.shape, layout)
    if len(layouts) > MAX_LAYOUTS:
        yield _font(f"... and {format_count(len(layouts) - MAX_LAYOUTS, 'more layout')}", 11)


def _layout(shape: tuple[int, ...], layout: Layout) -> Iterator[str]:
    if layout.storage is None:
        ranges, stores, empty = _of_partition(layout.partition(shape))
    else:
        ranges, stores, empty = _of_storage(layout.tiling(shape), shape)
    if stores:
        yield from _grids(ranges, shape, stores)
    elif prod(shape):
        yield _font(f"it is cut in more than {MAX_CELLS} cells, which are not drawn", 11)
    else:
        yield _font("the tensor has no elements", 11)
    if empty:
        yield _font(f"empty shards: {'rank' if len(empty) == 1 else 'ranks'} {format_ranks(empty, 60)}", 11)


def _of_partition(partition: Partition) -> tuple[list[list[Range]], Stores, list[int]]:
    """Ranges per dimension with the numbers of their shards, ranks by what they store, those of nothing."""
    stores: Stores = {}
    empty = []
    for rank, choice in sorted(partition.rows.items()):
        if all(length(shards[at]) for shards, at in zip(partition.shards, choice, strict=True)):
            stores.setdefault(tuple(choice), []).append(rank)
        else:
            empty.append(rank)
    ranges = [
        sorted((lo, hi, number) for number, shard in enumerate(shards) for lo, hi in shard)
        for shards in partition.shards
    ]
    return ranges, stores, empty


def _of_storage(tiling: Tiling, shape: tuple[int, ...]) -> tuple[list[list[Range]], Stores, list[int]]:
    """The same for storage, whose boxes are cut wherever another one begins or ends."""
    cuts = cuts_of([tiling], shape)
    ranges = [[(lo, hi, number) for number, (lo, hi) in enumerate(pairwise(cut.tolist()))] for cut in cuts]
    empty = sorted(rank for rank in tiling.ranks.tolist() if not tiling.count(rank))
    extents = tuple(map(len, ranges))
    if not 0 < prod(extents) <= MAX_CELLS:
        return ranges, {}, empty
    painted = tiling.paint(cuts, extents)
    stores: Stores = {}
    for cell, choice in enumerate(product(*map(range, extents))):
        held = (each.ranks[int(each.key[cell])] for each in painted)
        stores[choice] = sorted({rank for ranks in held for rank in ranks})
    return ranges, stores, empty


def _grids(ranges: list[list[Range]], shape: tuple[int, ...], stores: Stores) -> Iterator[str]:
    """One grid per range of the leading dimensions, as lines of several."""
    leading, last = ranges[:-2], ranges[-2:]
    count = prod(len(dim) for dim in leading)
    limit = MAX_RANGES if count == 1 else MAX_RANGES_OF_MANY
    shown = [_shorten(dim, limit) for dim in last]
    side = SIDE_POINTS if count == 1 else SIDE_POINTS_OF_MANY
    axes = _axes(shown, side, _room(shown, stores, leading=bool(leading)))
    numbers: dict[tuple[int, ...], int] = {}
    tints = {
        choice: TINTS[numbers.setdefault(tuple(ranks), len(numbers)) % len(TINTS)]
        for choice, ranks in stores.items()
    }
    across = len(shape) - 1
    words = [f"dim {dim} ({format_count(shape[dim], 'element')})" for dim in range(len(shape))]
    if shape:
        down = f"down: {words[across - 1]}, " if across else ""
        yield _font(f"{down}across: {words[across]}", 11)
    half = MAX_GRIDS // 2
    drawn = []
    for number, place in enumerate(product(*leading)):
        if count <= MAX_GRIDS or not half <= number < count - half:
            drawn.append(_grid(place, axes, stores, tints))
        elif number == half:
            drawn.append(_font(f"... {format_count(count - 2 * half, 'grid')} left out ...", 11))
    per_line = max(1, min(GRIDS_PER_LINE, LINE_WIDTH_POINTS // sum(axes[1].points)))
    lines = [drawn[start : start + per_line] for start in range(0, len(drawn), per_line)]
    cells = ["".join(f'<TD ALIGN="LEFT">{grid}</TD>' for grid in line) for line in lines]
    body = "".join(f"<TR>{line}</TR>" for line in cells)
    yield f'<TABLE BORDER="0" CELLSPACING="4" CELLPADDING="0">{body}</TABLE>'


def _shorten(ranges: Sequence[Range], limit: int) -> tuple[Range | None, ...]:
    """The ranges, with None in place of the middle ones if they are too many."""
    if len(ranges) <= limit:
        return tuple(ranges)
    return (*ranges[: limit // 2], None, *ranges[len(ranges) - (limit - 1) // 2 :])


def _room(shown: Sequence[Sequence[Range | None]], stores: Stores, *, leading: bool) -> int:
    """Width in points that the text of every cell fits in."""
    boxes = [max(len(f"{r[0]}:{r[1]}") for r in dim if r is not None) for dim in shown]
    box = len("[]") + sum(boxes) + len(", ") * (len(boxes) - 1 + leading) + len("...") * leading
    ranks = max(len(_who(members)) + len(_copies(members)) for members in stores.values())
    return round(CHARACTER_POINTS * (max(box, ranks) + 2))


def _axes(shown: Sequence[tuple[Range | None, ...]], side: int, width: int) -> tuple[Axis, Axis]:
    """Rows and columns with their lengths; a missing dimension is one row or column."""
    whole: tuple[Range | None, ...] = ((0, 1, -1),)
    both = (*(whole,) * (2 - len(shown)), *shown)
    least = (2 * LINE_POINTS + 6, width)
    extents = [max(r[1] for r in ranges if r is not None) for ranges in both]
    totals = [side * max(extent / max(extents), 1 / MAX_ASPECT) for extent in extents]
    parts = [[r[1] - r[0] for r in ranges if r is not None] for ranges in both]
    needed = [room * sum(part) / min(part) for part, room in zip(parts, least, strict=True)]
    growth = max(1, *(need / total for need, total in zip(needed, totals, strict=True)))
    axes = []
    for ranges, part, total, need, room in zip(both, parts, totals, needed, least, strict=True):
        grown = max(min(total * growth, side * MAX_GROWTH), min(need, MAX_SIDE_POINTS))
        if ranges is whole:
            grown = room
        points = (
            GAP_POINTS if r is None else max(room, round(grown * (r[1] - r[0]) / sum(part))) for r in ranges
        )
        axes.append(Axis(ranges, tuple(points)))
    return axes[0], axes[1]


def _grid(
    place: tuple[Range, ...], axes: tuple[Axis, Axis], stores: Stores, tints: dict[tuple[int, ...], str]
) -> str:
    """One grid, with the ranges of the leading dimensions above it."""
    lines = []
    for row, height in zip(axes[0].ranges, axes[0].points, strict=True):
        cells = []
        for column, width in zip(axes[1].ranges, axes[1].points, strict=True):
            size = f'WIDTH="{width}" HEIGHT="{height}"'
            if row is None or column is None:
                cells.append(f'<TD BORDER="0" {size}>...</TD>')
                continue
            drawn = [part for part in (row, column) if part[2] >= 0]
            choice = tuple(part[2] for part in (*place, *drawn))
            ranks = stores[choice]
            ranges = [*(["..."] if place else []), *(f"{lo}:{hi}" for lo, hi, _ in drawn)]
            copies = f"<B>{_copies(ranks)}</B>" if len(ranks) > 1 else ""
            text = f"{_who(ranks)}{copies}<BR/>[{', '.join(ranges)}]"
            frame = 3 if len(ranks) > 1 else 1
            cells.append(f'<TD BORDER="{frame}" BGCOLOR="{tints[choice]}" {size}>{_marked(text, 10)}</TD>')
        lines.append(f"<TR>{''.join(cells)}</TR>")
    height, width = (sum(axis.points) for axis in axes)
    table = (
        '<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="1" FIXEDSIZE="TRUE" ALIGN="LEFT"'
        f' WIDTH="{width}" HEIGHT="{height}" COLOR="{FAINT}">{"".join(lines)}</TABLE>'
    )
    if not place:
        return table
    box = ", ".join(f"{lo}:{hi}" for lo, hi, _ in place)
    return _stack([_font(f"[{box}, ...]", 11), table])


def _who(ranks: Sequence[int]) -> str:
    if not ranks:
        return "nobody"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks, 16)}"


def _copies(ranks: Sequence[int]) -> str:
    return f" x{len(ranks)}"


def _font(text: str, points: int) -> str:
    return _marked(html_text(text), points)


def _marked(text: str, points: int) -> str:
    return f'<FONT POINT-SIZE="{points}">{text}</FONT>'


def _stack(lines: Iterable[str], name: str = "") -> str:
    """Lines one above the other, left-aligned."""
    cells = "".join(f'<TR><TD ALIGN="LEFT">{text}</TD></TR>' for text in lines)
    named = f' ID="{name}_table"' if name else ""
    return f'<TABLE{named} BORDER="0" CELLSPACING="0" CELLPADDING="2">{cells}</TABLE>'
