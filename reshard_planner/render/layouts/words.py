"""What both layout pictures say in words beside their grids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard_planner.intset import format_ints
from reshard_planner.layout import Shard, StridedShard
from reshard_planner.render.layouts.cells import LayoutCells, TensorCells
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_shape, plain
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side

SIDE_NAMES: dict[Side, str] = {"src": "source (before)", "dst": "destination (after)"}
"""Headings of the two sides."""


def layout_head(tensor: TensorSpec) -> tuple[str, str]:
    """Name, and shape, element types and size of a tensor."""
    dtypes = " to ".join(dict.fromkeys((tensor.dtype, tensor.dst_dtype)))
    shape = f"{format_shape(tensor.shape)} {dtypes}"
    return f"Layouts of {plain(tensor.name)}", f"{shape}, {format_nbytes(tensor.nbytes)}"


def about(layout: LayoutCells, at: int, count: int) -> Iterator[str]:
    """Number of a layout among ``count``, how it cuts, its ranks, and what each of them stores."""
    title = f"layout {at + 1} of {count}: " if count > 1 else ""
    yield f"{title}{_cuts(layout)}"
    yield plain(layout.name, 240)
    least, most, total = layout.nbytes
    ranks = f"{format_count(len(layout.ranks), 'rank')}: {short_ranks(layout.ranks, 60)}"
    if least == most:
        yield f"{ranks}; {'each stores' if len(layout.ranks) > 1 else 'stores'} {format_nbytes(most)}"
    else:
        both = f"{format_nbytes(least)} to {format_nbytes(most)}"
        yield f"{ranks}; each stores {both}, together {format_nbytes(total)}"


def _cuts(layout: LayoutCells) -> str:
    """What mesh axes do, in words."""
    if not layout.axes:
        return "every rank stores the boxes that the spec lists for it"
    said = []
    for axis, size, placement in layout.axes:
        name = plain(axis, 24)
        match placement:
            case Shard(dim):
                said.append(f"{name}: dim {dim} cut in {size}")
            case StridedShard(dim, factor):
                said.append(f"{name}: each of {factor} parts of dim {dim} cut in {size}")
            case _:
                said.append(f"{name}: {size:,} {'copy' if size == 1 else 'copies'}")
    return "; ".join(said)


def whose(ranks: Sequence[int], name: str) -> str:
    """Who stores a box, in words.

    Args:
        ranks: all of them.
        name: the same as short as there is room.

    >>> whose((8, 12), "8,12"), whose((3,), "3"), whose((4, 5, 6), "4-6")
    ('ranks 8 and 12', 'rank 3', 'ranks 4-6')
    """
    if not ranks:
        return name
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {name}"


def notes_of(tensor: TensorSpec, cells: TensorCells, layout: LayoutCells) -> Iterator[str]:
    """What the grids of a layout do not show."""
    whole = [f"dim {dim} (0:{tensor.shape[dim]})" for dim in layout.whole]
    if whole and layout.panels:
        yield f"whole in every cell: {', '.join(whole)}"
    for dim, ranges in ((cells.down, layout.rows), (cells.across, layout.columns)):
        for each in ranges:
            if each.left_out:
                count = format_count(each.left_out, "range")
                yield f"left out of dim {dim}: {count} within {each.lo}:{each.hi}"
    if layout.empty:
        noun = "rank" if len(layout.empty) == 1 else "ranks"
        yield f"store nothing: {noun} {short_ranks(layout.empty, 60)}"


def short_ranks(ranks: Sequence[int], limit: int) -> str:
    """Ranks as ranges, as by ``format_ranks``, in little time also where thousands stand apart.

    >>> short_ranks(range(0, 8192, 2), 16)
    '0,2,4,6,...,8190'
    """
    parts = format_ints(ranks).split(",")
    if len(parts) <= limit:
        return format_ranks(ranks, limit)
    first = limit // 2  # a part takes two characters or more with its comma
    while first > 2 and len(",".join((*parts[:first], "...", parts[-1]))) > limit:
        first -= 1
    return ",".join((*parts[:first], "...", parts[-1]))
