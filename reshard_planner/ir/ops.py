"""Operations: every transfer of every unit, expanded from the tables as columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import ElementColumns, RowBoxes, freeze_columns
from reshard_planner.ir.tables import Groups, Schedule, Tables
from reshard_planner.spec import ReshardSpec

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """Operations in order of their numbers; empty ones (a chunk of no elements) are left out.

    The number of an operation is its unit times the number of route rows, plus its row. It is unique in the
    plan, and its order is that in which both ends of a pair pack one message.

    Attributes:
        op: number of the operation.
        parent: operation that brings the bytes, -1 for the source's own tile.
        unit: row of the schedule.
        row: row of the routes.
        tensor: position of the tensor in the spec.
        src: sending rank.
        dst: receiving rank.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        scratch: whether the destination keeps the bytes aside.
        tile: destination tile, -1 with ``scratch``.
        slot: slot in which it runs.
        lo: first index per dimension, in elements, shape (ops, most dims of any tensor), padded with 0.
        hi: index past the last per dimension, likewise, padded with 1.
        nbytes: bytes moved.
    """

    op: Ints
    parent: Ints
    unit: Ints
    row: Ints
    tensor: Ints
    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    scratch: Ints
    tile: Ints
    slot: Ints
    lo: Ints
    hi: Ints
    nbytes: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __len__(self) -> int:
        return len(self.op)

    def transfers(self) -> Ints:
        """Position of the first operation of every transfer: of every piece of a tensor that a row moves."""
        size = int(self.tensor.max(initial=0)) + 1
        keys = self.row * size + self.tensor
        first: Ints = np.unique(keys, return_index=True)[1]
        return first

    def select(self, mask: NDArray[np.bool_] | Ints) -> Ops:
        """The operations at a mask or at positions."""
        return Ops(*(getattr(self, column.name)[mask] for column in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of the routes, all or some of them, with all that their operations depend on.

    Attributes:
        total: number of rows of the whole table, which operations are numbered by.
        number: number of each row in it, ascending.
        parent: number of the row that brings the piece, -1 for the source's own tile.
        group: group that the row's piece belongs to.
        part: part that it belongs to.
        src: sending rank, before substitution.
        dst: receiving rank, before substitution.
        medium: as in the table, like the others below.
        role: as in the table.
        scratch: as in the table.
        tile: as in the table.
        offset: as in the table.
        boxes: boxes of the rows' pieces.
    """

    total: int
    number: Ints
    parent: Ints
    group: Ints
    part: Ints
    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    scratch: Ints
    tile: Ints
    offset: Ints
    boxes: RowBoxes

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, tables: Tables) -> Rows:
        """All rows of a plan."""
        routes, pieces = tables.routes, tables.pieces
        return cls(
            len(routes),
            np.arange(len(routes), dtype=np.int64),
            routes.parent.astype(np.int64),
            pieces.group[routes.piece].astype(np.int64),
            pieces.part[routes.piece].astype(np.int64),
            routes.src.astype(np.int64),
            routes.dst.astype(np.int64),
            routes.medium.astype(np.int64),
            routes.role.astype(np.int64),
            routes.scratch.astype(np.int64),
            routes.tile.astype(np.int64),
            routes.offset.astype(np.int64),
            RowBoxes.of(routes, pieces),
        )


class Expansion:
    """The tables prepared for expansion.

    Args:
        spec: what the plan was compiled from.
        groups: which tensors share routes.
        schedule: the units.
        rows: all rows of the routes, or at least those of the ranks that are asked for.
    """

    def __init__(self, spec: ReshardSpec, groups: Groups, schedule: Schedule, rows: Rows) -> None:
        self.elements = ElementColumns.of(spec.tensors)
        self.groups, self.schedule, self.rows = groups, schedule, rows
        size = int(max(rows.src.max(initial=-1), rows.dst.max(initial=-1))) + 1
        self.renamed_by, self.renamings = groups.renamings(size)

    @classmethod
    def of(cls, spec: ReshardSpec, tables: Tables) -> Expansion:
        """All rows of a plan."""
        return cls(spec, tables.groups, tables.schedule, Rows.of(tables))

    def expand(self, rank: int | None = None, tensors: Collection[int] | None = None) -> Ops:
        """Expand all operations, or those of one rank or of some tensors.

        Args:
            rank: keep what this rank sends or receives.
            tensors: positions in the spec; keep what moves these.
        """
        schedule = self.schedule
        units = np.arange(len(schedule))
        if tensors is not None:
            units = units[np.isin(schedule.tensor, np.fromiter(tensors, dtype=np.int64))]
        group, at = self._pairs(rank)
        parts = int(max(self.rows.part.max(initial=0), schedule.part.max(initial=0))) + 1
        keys = group * parts + self.rows.part[at]
        order = np.argsort(keys, kind="stable")
        keys, at = keys[order], at[order]
        used = schedule.group if rank is not None else self.groups.routes_of[schedule.group]
        wanted = used.astype(np.int64) * parts + schedule.part
        first = np.searchsorted(keys, wanted, side="left")
        count = np.searchsorted(keys, wanted, side="right") - first
        unit = np.repeat(units, count[units])
        starts = np.cumsum(count[units]) - count[units]
        local = np.arange(len(unit)) - np.repeat(starts, count[units])
        ops = self._build(unit, at[first[unit] + local])
        keep = ops.nbytes > 0
        return ops if keep.all() else ops.select(keep)

    def _pairs(self, rank: int | None) -> tuple[Ints, Ints]:
        """Groups and positions of the rows that are expanded for their units, rows ascending per group.

        Without a rank, rows stand for the group that has them and for all that use them.
        """
        rows = self.rows
        if rank is None:
            return rows.group, np.arange(len(rows.number))
        size = self.renamings.shape[1]
        renaming, stand_in = np.nonzero(self.renamings == rank)
        names = {int(number): stand_in[renaming == number] for number in np.unique(renaming)}
        if rank >= size:
            names = dict.fromkeys(range(len(self.renamings)), np.array([rank]))
        anyone = np.unique(np.concatenate(list(names.values()))) if names else stand_in
        near = np.flatnonzero(np.isin(rows.src, anyone) | np.isin(rows.dst, anyone))
        of_renaming = {
            number: near[np.isin(rows.src[near], ranks) | np.isin(rows.dst[near], ranks)]
            for number, ranks in names.items()
        }
        groups, found = [near[:0]], [near[:0]]
        for group, (owner, number) in enumerate(
            zip(self.groups.routes_of.tolist(), self.renamed_by.tolist(), strict=True)
        ):
            mine = of_renaming.get(number, near[:0])
            mine = mine[rows.group[mine] == owner]
            groups.append(np.full(len(mine), group))
            found.append(mine)
        return np.concatenate(groups), np.concatenate(found)

    def _build(self, unit: Ints, row: Ints) -> Ops:
        schedule, rows = self.schedule, self.rows
        base = unit.astype(np.int64) * rows.total
        parent = np.where(rows.parent[row] >= 0, base + rows.parent[row], -1)
        tensor = schedule.tensor[unit].astype(np.int64)
        lo, hi, nbytes = self._boxes(unit, row, tensor)
        src, dst = rows.src[row], rows.dst[row]
        if len(self.renamings) > 1:
            renaming = self.renamed_by[schedule.group[unit]]
            src, dst = self.renamings[renaming, src], self.renamings[renaming, dst]
        return Ops(
            base + rows.number[row],
            parent,
            unit.astype(np.int64),
            rows.number[row],
            tensor,
            src,
            dst,
            rows.medium[row],
            rows.role[row],
            rows.scratch[row],
            rows.tile[row],
            schedule.round[unit] + rows.offset[row],
            lo,
            hi,
            nbytes,
        )

    def _boxes(self, unit: Ints, row: Ints, tensor: Ints) -> tuple[Ints, Ints, Ints]:
        """Boxes of the operations: each row's piece within its chunk of the tree's piece."""
        boxes, elements = self.rows.boxes, self.elements
        chunk = self.schedule.chunk[unit].astype(np.int64)
        n_chunks = self.schedule.n_chunks[unit].astype(np.int64)
        lo, hi = boxes.lo[row], boxes.hi[row]
        at, first, last = boxes.ranges(row, chunk, n_chunks, elements.ndim[tensor], elements.step[tensor])
        dim = boxes.dim[row[at]]
        lo[at, dim], hi[at, dim] = first, last
        volume = np.prod(hi - lo, axis=1, dtype=np.int64)
        volume[(boxes.dim[row] < 0) & (chunk > 0)] = 0
        return lo, hi, volume * elements.bits[tensor] // 8
