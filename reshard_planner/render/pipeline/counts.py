"""What a pipeline picture shows of a plan: bytes per kind of work, row of ranks and column of slots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.ranknumbers import number_ranks
from reshard_planner.ir.stream import Block, Stream, UnitRows
from reshard_planner.render.pipeline.packing import find_reads, packed_nbytes
from reshard_planner.render.pipeline.rows import PictureRows
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]

MAX_COLUMNS = 60
"""Columns of a picture; where there are more slots, several have one together."""


class Work(IntEnum):
    """What ranks do in a slot, in the order in which a row shows it."""

    INJECT = 0
    RELAY = 1
    ARRIVE = 2
    FANOUT = 3
    HANDOFF = 4
    COPY = 5
    PACK = 6


WORK_OF_ROLE = {
    Role.INJECT: Work.INJECT,
    Role.RELAY: Work.RELAY,
    Role.FANOUT: Work.FANOUT,
    Role.HANDOFF: Work.HANDOFF,
    Role.COPY: Work.COPY,
}
"""What a sender does in a transfer of each role."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkCounts:
    """Bytes of a plan by work, row and column.

    Attributes:
        slots: slots of the plan.
        per_column: slots of each column, the last one possibly with fewer.
        nbytes: bytes, int64 of shape (kinds of work, rows, columns). What arrives over the network counts at
            its receiver, all else at its sender.
        packed: whether what ranks pack was worked out; all zero otherwise.
    """

    slots: int
    per_column: int
    nbytes: Ints
    packed: bool

    @property
    def columns(self) -> int:
        return int(self.nbytes.shape[2])


def count_cells(plan: Plan, rows: PictureRows) -> WorkCounts:
    """Add up the operations of a plan, some slots at a time.

    Memory grows with the rows and units of the tables and with the operations of one slot.

    Raises:
        VerificationError: if an operation reads what its rank does not have.
    """
    units = UnitRows(plan.spec, plan.tables)
    entries = np.arange(len(plan.routes), dtype=np.int64)
    stream = Stream(units, entries, plan.routes.offset.astype(np.int64), max(plan.ranks, default=0) + 1)
    slots = int(stream.slot.max(initial=-1)) + 1
    per_column = max(1, -(-slots // MAX_COLUMNS))
    counter = _CellCounter(plan, stream, rows, per_column, -(-slots // per_column))
    for block in stream.blocks():
        counter.add(block)
    return WorkCounts(slots, per_column, counter.nbytes, counter.reads is not None)


class _CellCounter:
    """Counters that blocks of operations are added to."""

    def __init__(self, plan: Plan, stream: Stream, rows: PictureRows, per_column: int, columns: int) -> None:
        self.plan, self.row, self.per_column = plan, stream.row, per_column
        self.nbytes: Ints = np.zeros((len(Work), len(rows), columns), dtype=np.int64)
        self.numbers = number_ranks(plan.tables, len(rows.row_of))
        self.row_of: Ints = np.full(len(self.numbers.ranks), -1, dtype=np.int64)
        known = self.numbers.ranks < len(rows.row_of)
        self.row_of[known] = rows.row_of[self.numbers.ranks[known]]
        self.work_of = np.full(256, -1, dtype=np.int64)
        for role, work in WORK_OF_ROLE.items():
            self.work_of[role] = work
        ops_of_unit = np.zeros(len(plan.schedule), dtype=np.int64)
        np.add.at(ops_of_unit, stream.unit, stream.counts[stream.kind])
        self.reads = find_reads(plan, ops_of_unit)

    def add(self, block: Block) -> None:
        """Add one block."""
        routes = self.plan.routes
        row, unit, slot = self.row[block.entry], block.unit[block.run], block.slots[block.slot]
        src, dst = self.numbers.ends(block, self.plan.schedule.group, routes.src[row], routes.dst[row])
        medium = routes.medium[row].astype(np.int64)
        self._add(self.work_of[routes.role[row]], src, slot, block.nbytes)
        over = medium == Medium.NETWORK
        self._add(np.full(int(over.sum()), Work.ARRIVE), dst[over], slot[over], block.nbytes[over])
        if self.reads is not None:
            some = np.flatnonzero((src != dst) & (block.nbytes > 0))
            src, dst, medium, slot = src[some], dst[some], medium[some], slot[some]
            straight = self.reads.straight(unit[some], row[some])
            packed = packed_nbytes(src, dst, medium, slot, block.nbytes[some], straight)
            self._add(np.full(len(some), Work.PACK), src, slot, packed)

    def _add(self, work: Ints, rank: Ints, slot: Ints, nbytes: Ints) -> None:
        row = self.row_of[rank]
        _, rows, columns = self.nbytes.shape
        cell = (work * rows + row) * columns + slot // self.per_column
        known = (work >= 0) & (row >= 0)
        if not known.all():
            cell, nbytes = cell[known], nbytes[known]
        np.add.at(self.nbytes.reshape(-1), cell, nbytes)
