"""Operations: every transfer of every unit, expanded from the tables as columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.tables import Tables
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.values import byte_step

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
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
        for column in fields(self):
            getattr(self, column.name).setflags(write=False)

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


class Expansion:
    """The tables prepared for expansion: rows sorted by (group, part)."""

    def __init__(self, spec: ReshardSpec, tables: Tables) -> None:
        self.spec = spec
        self.tables = tables
        routes, pieces, schedule = tables.routes, tables.pieces, tables.schedule
        parts = int(pieces.part.max(initial=0)) + 1
        key = pieces.group[routes.piece].astype(np.int64) * parts + pieces.part[routes.piece]
        self.order = np.argsort(key, kind="stable")
        keys = key[self.order]
        used = tables.groups.routes_of[schedule.group].astype(np.int64) * parts + schedule.part
        self.first = np.searchsorted(keys, used, side="left")
        self.count = np.searchsorted(keys, used, side="right") - self.first

    def expand(self, rank: int | None = None, tensors: Collection[int] | None = None) -> Ops:
        """Expand all operations, or those of one rank or of some tensors.

        Args:
            rank: keep what this rank sends or receives.
            tensors: positions in the spec; keep what moves these.
        """
        schedule, routes = self.tables.schedule, self.tables.routes
        units = np.arange(len(schedule))
        if tensors is not None:
            units = units[np.isin(schedule.tensor, np.fromiter(tensors, dtype=np.int64))]
        substituted = len(self.tables.groups.subst_group) > 0
        order, first, count = self.order, self.first, self.count
        if rank is not None and not substituted:
            mine = (routes.src[order] == rank) | (routes.dst[order] == rank)
            before = np.concatenate(([0], np.cumsum(mine)))
            first, count = before[self.first], before[self.first + self.count] - before[self.first]
            order = order[mine]
        unit = np.repeat(units, count[units])
        starts = np.cumsum(count[units]) - count[units]
        local = np.arange(len(unit)) - np.repeat(starts, count[units])
        row = order[first[unit] + local]
        ops = self._build(unit, row)
        keep = ops.nbytes > 0
        if rank is not None and substituted:
            keep &= (ops.src == rank) | (ops.dst == rank)
        return ops if keep.all() else ops.select(keep)

    def _build(self, unit: Ints, row: Ints) -> Ops:
        schedule, routes = self.tables.schedule, self.tables.routes
        base = unit.astype(np.int64) * len(routes)
        parent_row = routes.parent[row].astype(np.int64)
        parent = np.where(parent_row >= 0, base + parent_row, -1)
        tensor = schedule.tensor[unit].astype(np.int64)
        lo, hi, nbytes = self._boxes(unit, row, tensor)
        src, dst = self._ranks(unit, row)
        return Ops(
            base + row,
            parent,
            unit.astype(np.int64),
            row.astype(np.int64),
            tensor,
            src,
            dst,
            routes.medium[row].astype(np.int64),
            routes.role[row].astype(np.int64),
            routes.scratch[row].astype(np.int64),
            routes.tile[row].astype(np.int64),
            schedule.round[unit].astype(np.int64) + routes.offset[row],
            lo,
            hi,
            nbytes,
        )

    def _boxes(self, unit: Ints, row: Ints, tensor: Ints) -> tuple[Ints, Ints, Ints]:
        """Boxes of the operations: each row's piece within its chunk of the tree's piece.

        A row's parent always carries the piece of the whole tree; only copies carry a smaller one.
        """
        schedule, routes, pieces = self.tables.schedule, self.tables.routes, self.tables.pieces
        piece = routes.piece[row]
        parent = routes.parent[row]
        root = np.where(parent >= 0, routes.piece[np.maximum(parent, 0)], piece)
        lo = pieces.lo[piece].astype(np.int64)
        hi = pieces.hi[piece].astype(np.int64)
        dim = pieces.cut_dim[root].astype(np.int64)
        bits = np.array([member.bits for member in self.spec.tensors], dtype=np.int64)
        ndim = np.array([len(member.shape) for member in self.spec.tensors], dtype=np.int64)
        steps = np.array([byte_step(member.bits) for member in self.spec.tensors], dtype=np.int64)
        chunk = schedule.chunk[unit].astype(np.int64)
        n_chunks = schedule.n_chunks[unit].astype(np.int64)
        at = np.flatnonzero(dim >= 0)
        if len(at):
            d = dim[at]
            start, stop = pieces.lo[root[at], d], pieces.hi[root[at], d]
            align = np.where(d == ndim[tensor[at]] - 1, steps[tensor[at]], 1)
            extent = (stop - start) // align
            first = start + align * _share(extent, chunk[at], n_chunks[at])
            last = start + align * _share(extent, chunk[at] + 1, n_chunks[at])
            lo[at, d] = np.maximum(lo[at, d], first)
            hi[at, d] = np.maximum(lo[at, d], np.minimum(hi[at, d], last))
        volume = np.prod(hi - lo, axis=1, dtype=np.int64)
        volume[(dim < 0) & (chunk > 0)] = 0
        return lo, hi, volume * bits[tensor] // 8

    def _ranks(self, unit: Ints, row: Ints) -> tuple[Ints, Ints]:
        routes, groups = self.tables.routes, self.tables.groups
        src, dst = routes.src[row].astype(np.int64), routes.dst[row].astype(np.int64)
        group = self.tables.schedule.group[unit]
        size = int(max(src.max(initial=0), dst.max(initial=0))) + 1
        for substituted in np.unique(groups.subst_group).tolist():
            mapping = groups.substitution(substituted, max(size, int(groups.subst_from.max()) + 1))
            at = np.flatnonzero(group == substituted)
            if mapping is not None and len(at):
                src[at], dst[at] = mapping[src[at]], mapping[dst[at]]
        return src, dst


def _share(extent: Ints, part: Ints, parts: Ints) -> Ints:
    """``floor(extent * part / parts)``, without the product, which may exceed 64 bits."""
    return extent // parts * part + extent % parts * part // parts
