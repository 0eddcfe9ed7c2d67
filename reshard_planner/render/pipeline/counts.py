"""What a pipeline picture shows of a plan: bytes per kind of work, row of ranks and column of slots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.stream import Block, Stream, UnitRows
from reshard_planner.render.pipeline.packing import Straight, packed_nbytes
from reshard_planner.render.pipeline.rows import Rows
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]

MAX_CELLS = 1500
"""Rows times columns of a picture."""

MAX_COLUMNS = 80
"""Columns of a picture; where there are more slots, several have one together."""


class Kind(IntEnum):
    """Kinds of work, in the order in which a row shows them."""

    INJECT = 0
    RELAY = 1
    ARRIVE = 2
    FANOUT = 3
    HANDOFF = 4
    COPY = 5
    PACK = 6


KIND_OF_ROLE = {
    Role.INJECT: Kind.INJECT,
    Role.RELAY: Kind.RELAY,
    Role.FANOUT: Kind.FANOUT,
    Role.HANDOFF: Kind.HANDOFF,
    Role.COPY: Kind.COPY,
}
"""What a sender does in a transfer of each role."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Bytes of a plan by kind, row and column.

    Attributes:
        slots: slots of the plan.
        per_column: slots of each column, the last one possibly with fewer.
        nbytes: bytes, int64 of shape (kinds, rows, columns). What arrives over the network counts at its
            receiver, all else at its sender.
        packed: whether what ranks pack was worked out; all zero otherwise.
    """

    slots: int
    per_column: int
    nbytes: Ints
    packed: bool

    @property
    def columns(self) -> int:
        return int(self.nbytes.shape[2])


def count_cells(plan: Plan, rows: Rows) -> Counts:
    """Add up the operations of a plan, some slots at a time.

    Memory grows with the rows and units of the tables and with the operations of one slot.

    Raises:
        VerificationError: if an operation reads what its rank does not have.
    """
    units = UnitRows(plan.spec, plan.tables)
    number = np.arange(len(plan.routes), dtype=np.int64)
    stream = Stream(units, number, plan.routes.offset.astype(np.int64), max(plan.ranks, default=0) + 1)
    slots = int(stream.slot.max(initial=-1)) + 1
    most = max(1, min(MAX_COLUMNS, MAX_CELLS // max(1, len(rows.rows))))
    per_column = max(1, -(-slots // most))
    counter = _Counter(plan, stream, rows, per_column, -(-slots // per_column))
    for block in stream.blocks():
        counter.add(block)
    return Counts(slots, per_column, counter.nbytes, counter.packed)


class _Counter:
    """Counters that blocks of operations are added to."""

    def __init__(self, plan: Plan, stream: Stream, rows: Rows, per_column: int, columns: int) -> None:
        self.plan, self.row, self.row_of, self.per_column = plan, stream.row, rows.row_of, per_column
        self.nbytes: Ints = np.zeros((len(Kind), len(rows.rows), columns), dtype=np.int64)
        routes = plan.routes
        size = int(max(routes.src.max(initial=0), routes.dst.max(initial=0))) + 1
        self.renamed_by, self.names = plan.groups.renamings(max(size, len(rows.row_of)))
        self.kind_of = np.full(256, -1, dtype=np.int64)
        for role, kind in KIND_OF_ROLE.items():
            self.kind_of[role] = kind
        self.straight = Straight(plan)
        counts = np.zeros(len(plan.schedule), dtype=np.int64)
        np.add.at(counts, stream.unit, stream.counts[stream.kind])
        self.packed = self.straight.prepare(plan, counts)

    def add(self, block: Block) -> None:
        """Add one block."""
        routes = self.plan.routes
        row, unit, slot = self.row[block.entry], block.unit[block.run], block.slots[block.slot]
        renaming = self.renamed_by[self.plan.schedule.group[unit]]
        src, dst = self.names[renaming, routes.src[row]], self.names[renaming, routes.dst[row]]
        medium = routes.medium[row].astype(np.int64)
        self._add(self.kind_of[routes.role[row]], src, slot, block.nbytes)
        over = medium == Medium.NETWORK
        self._add(np.full(int(over.sum()), Kind.ARRIVE), dst[over], slot[over], block.nbytes[over])
        if self.packed:
            some = np.flatnonzero((src != dst) & (block.nbytes > 0))
            src, dst, medium, slot = src[some], dst[some], medium[some], slot[some]
            straight = self.straight.of(unit[some], row[some])
            packed = packed_nbytes(src, dst, medium, slot, block.nbytes[some], straight)
            self._add(np.full(len(some), Kind.PACK), src, slot, packed)

    def _add(self, kind: Ints, rank: Ints, slot: Ints, nbytes: Ints) -> None:
        row = self.row_of[rank]
        _, rows, columns = self.nbytes.shape
        cell = (kind * rows + row) * columns + slot // self.per_column
        known = (kind >= 0) & (row >= 0)
        if not known.all():
            cell, nbytes = cell[known], nbytes[known]
        np.add.at(self.nbytes.reshape(-1), cell, nbytes)
