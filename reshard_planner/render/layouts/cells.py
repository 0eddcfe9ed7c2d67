"""Who stores which box of a tensor, cut small enough to be drawn: what both layout pictures show.

A layout cuts a tensor along each dimension. The two dimensions that are cut most become the sides of a grid
of cells; of the others, those that are cut give a panel per range, and those that are not are whole in every
cell. The middle of what is too much to show is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.layout import Layout, Placement
from reshard_planner.render.layouts.stores import Ints, Stores, stores_of
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import SIDES, Side

MAX_LAYOUTS = 4
"""Layouts of a side above which the rest are only counted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a layout is shown.

    Attributes:
        ranges: most ranges along a side of a grid, the one in place of those left out among them; 3 or more.
        ranges_of_many: the same where there are several panels; 3 or more.
        panels: most panels of a layout; 2 or more.
    """

    ranges: int = 8
    ranges_of_many: int = 4
    panels: int = 16


@dataclass(frozen=True, slots=True)
class Range:
    """Indices of one dimension.

    Attributes:
        lo: first index.
        hi: index past the last.
        left_out: number of ranges that this one stands for, as they are not shown; 0 for one that is.
    """

    lo: int
    hi: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One shown box of a layout.

    Attributes:
        box: elements that all of the ranks store, and no others.
        ranks: who stores them, ascending; empty where storage leaves them out.
        group: number of this set of ranks, equal for equal sets of both sides of the tensor.
        nbytes: size of the box in the element type of its side.
    """

    box: Box
    ranks: tuple[int, ...]
    group: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One grid of cells.

    Attributes:
        place: dimension and range of each dimension that is cut and no side of the grid.
        cells: rows of cells, with None wherever a range is left out.
    """

    place: tuple[tuple[int, Range], ...]
    cells: tuple[tuple[Cell | None, ...], ...]


@dataclass(frozen=True, slots=True)
class LayoutCells:
    """What is shown of one layout.

    Attributes:
        name: mesh axes and placements; not escaped, and of any length.
        axes: name, ranks and placement of every mesh axis; none where boxes are stored without placements.
        ranks: all ranks, ascending.
        nbytes: least and most bytes that one rank stores, and the sum over ranks.
        whole: dimensions that it does not cut and that are no side of the grid.
        rows: ranges of the tensor's dimension ``down``; one range 0:1 where there is none.
        columns: ranges of its dimension ``across``, likewise.
        panels: the first and the last panels; none for a tensor without elements.
        left_out: number of panels that are left out in the middle.
        empty: ranks that store nothing.
    """

    name: str
    axes: tuple[tuple[str, int, Placement], ...]
    ranks: tuple[int, ...]
    nbytes: tuple[int, int, int]
    whole: tuple[int, ...]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    panels: tuple[Panel, ...]
    left_out: int
    empty: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorCells:
    """What is shown of a tensor.

    Attributes:
        down: dimension that runs down in every grid; None for fewer than two dimensions.
        across: dimension that runs across; None for a 0-d tensor.
        src: layouts before.
        dst: layouts after.
        more: numbers of layouts of both sides that are only counted.
        groups: the sets of ranks that cells number.
    """

    down: int | None
    across: int | None
    src: tuple[LayoutCells, ...]
    dst: tuple[LayoutCells, ...]
    more: tuple[int, int]
    groups: tuple[tuple[int, ...], ...]


SideStores = dict[Side, tuple[tuple[Layout, Stores], ...]]
"""The shown layouts of both sides, ready to be asked who stores a box."""


def side_stores(tensor: TensorSpec) -> SideStores:
    """What takes the time: for pictures of several limits, once."""
    return {
        side: tuple((each, stores_of(each, tensor.shape)) for each in tensor.layouts(side)[:MAX_LAYOUTS])
        for side in SIDES
    }


def tensor_cells(
    tensor: TensorSpec, limits: Limits | None = None, stores: SideStores | None = None
) -> TensorCells:
    """Cut what both sides of a tensor store in cells.

    Args:
        tensor: with layouts of placements, of storage or of both.
        limits: how much to show.
        stores: of the same tensor, where they are known already.
    """
    limits, stores = limits or Limits(), stores or side_stores(tensor)
    counts = [
        max(len(each.bounds[dim][0]) for side in SIDES for _, each in stores[side])
        for dim in range(len(tensor.shape))
    ]
    by_cuts = sorted(range(len(counts)), key=lambda dim: (counts[dim], tensor.shape[dim], dim))
    sides = tuple(sorted(by_cuts[-2:]))
    others = tuple(dim for dim in range(len(counts)) if dim not in sides)
    down, across = (None, None, *sides)[-2:]
    groups: dict[tuple[int, ...], int] = {}
    shown = {
        side: tuple(
            _layout(tensor, side, layout, each, (down, across), others, limits, groups)
            for layout, each in stores[side]
        )
        for side in SIDES
    }
    more = tuple(len(tensor.layouts(side)) - len(shown[side]) for side in SIDES)
    return TensorCells(down, across, shown["src"], shown["dst"], (more[0], more[1]), tuple(groups))


def _layout(
    tensor: TensorSpec,
    side: Side,
    layout: Layout,
    stores: Stores,
    sides: tuple[int | None, int | None],
    others: tuple[int, ...],
    limits: Limits,
    groups: dict[tuple[int, ...], int],
) -> LayoutCells:
    bits, ndim = DTYPE_BITS[tensor.side_dtype(side)], len(tensor.shape)
    down, across = sides
    whole = tuple(dim for dim in others if len(stores.bounds[dim][0]) <= 1)
    count = prod(len(stores.bounds[dim][0]) for dim in others)
    limit = limits.ranges if count <= 1 else limits.ranges_of_many
    rows, columns = ((Range(0, 1),) if dim is None else _shorten(stores.bounds[dim], limit) for dim in sides)
    if not prod(tensor.shape):
        count, rows, columns = 0, (), ()
    half = limits.panels // 2
    numbers = range(count) if count <= limits.panels else (*range(half), *range(count - half, count))
    panels = []
    for number in numbers:
        place = _place(number, others, stores)
        cells = tuple(
            tuple(
                None
                if row.left_out or column.left_out
                else _cell(stores, ndim, {**dict(place), down: row, across: column}, bits, groups)
                for column in columns
            )
            for row in rows
        )
        cut = tuple((dim, found) for dim, found in place if dim not in whole)
        panels.append(Panel(cut, cells))
    volumes = stores.volumes.tolist()  # as many copies may be more elements than an int64 counts
    sizes = tuple(each * bits // 8 for each in (min(volumes), max(volumes), sum(volumes)))
    return LayoutCells(
        str(layout),
        tuple(zip(layout.mesh.axes, layout.mesh.shape, layout.placements, strict=False)),
        tuple(sorted(layout.mesh.ranks)),
        (sizes[0], sizes[1], sizes[2]),
        whole,
        rows,
        columns,
        tuple(panels),
        count - len(panels),
        tuple(sorted(stores.ranks[stores.volumes == 0].tolist())),
    )


def _place(number: int, dims: tuple[int, ...], stores: Stores) -> tuple[tuple[int, Range], ...]:
    """The ranges of a panel along dimensions that are no side of a grid, the last of them fastest."""
    place = []
    for dim in reversed(dims):
        lo, hi = stores.bounds[dim]
        number, at = divmod(number, len(lo))
        place.append((dim, Range(int(lo[at]), int(hi[at]))))
    return tuple(reversed(place))


def _cell(
    stores: Stores,
    ndim: int,
    ranges: Mapping[int | None, Range],
    bits: int,
    groups: dict[tuple[int, ...], int],
) -> Cell:
    box = Box(tuple(ranges[dim].lo for dim in range(ndim)), tuple(ranges[dim].hi for dim in range(ndim)))
    ranks = stores.of(box)
    return Cell(box, ranks, groups.setdefault(ranks, len(groups)), box.volume * bits // 8)


def _shorten(bounds: tuple[Ints, Ints], limit: int) -> tuple[Range, ...]:
    """Ranges in order, the middle ones as one where they are too many."""
    lo, hi = bounds
    count = len(lo)
    first, last = (count, count) if count <= limit else (limit // 2, count - (limit - 1) // 2)
    ranges = [Range(int(lo[at]), int(hi[at])) for at in range(first)]
    if first < last:
        ranges.append(Range(int(lo[first]), int(lo[last]), last - first))
    return (*ranges, *(Range(int(lo[at]), int(hi[at])) for at in range(last, count)))
