"""The operations of a plan, block of slots by block of slots, so that they are never all held at once.

A unit of the schedule runs the rows of its part, those of equal offset together. The operations of some
slots are thus a few runs of rows, one for each unit and offset, which are expanded when their turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import ElementColumns, RowBoxes, freeze_columns
from reshard_planner.ir.tables import Schedule, Tables
from reshard_planner.spec import ReshardSpec

Ints = NDArray[np.int64]

BLOCK_OPS = 2**17
"""Operations that a block has about; its columns then lie in the cache."""

BLOCK_COUNTERS = 2**20
"""Most slots times ranks of a block that has several slots."""

MAX_HELD_ROWS = 2**22
"""Most rows times different chunks whose bytes are computed once and kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The entries of some slots.

    Attributes:
        slots: the slots in which something runs, ascending.
        unit: unit of each run.
        first: position of each run's first entry in the columns below.
        run: run of each entry.
        slot: position of its slot among ``slots``.
        entry: which entry of the stream it is.
        nbytes: its bytes; 0 for a chunk of no elements.
    """

    slots: Ints
    unit: Ints
    first: Ints
    run: Ints
    slot: Ints
    entry: Ints
    nbytes: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)


class UnitRows:
    """Units of the schedule, and the bytes of every row in them."""

    def __init__(self, spec: ReshardSpec, tables: Tables) -> None:
        pieces, routes, schedule = tables.pieces, tables.routes, tables.schedule
        self.tables = tables
        self.elements = ElementColumns.of(spec.tensors)
        self.boxes = RowBoxes.of(routes, pieces)
        parts = int(max(pieces.part.max(initial=0), schedule.part.max(initial=0))) + 1
        # parts of groups that have pieces, numbered in order
        keys, piece_bin = np.unique(pieces.group.astype(np.int64) * parts + pieces.part, return_inverse=True)
        self.row_bin: Ints = piece_bin.astype(np.int64)[routes.piece]
        wanted = tables.groups.routes_of[schedule.group].astype(np.int64) * parts + schedule.part
        at = np.searchsorted(keys, wanted)
        found = keys[np.minimum(at, len(keys) - 1)] == wanted if len(keys) else np.zeros(len(at), dtype=bool)
        self.bins = len(keys)
        self.bin: Ints = np.where(found, at, -1)
        self.volumes, self.slices = self.boxes.volumes()

    def nbytes(self, unit: Ints, row: Ints) -> Ints:
        """Bytes that some rows move in some units."""
        schedule: Schedule = self.tables.schedule
        tensor = schedule.tensor[unit]
        bits = self.elements.bits[tensor]
        volumes = self.volumes[row]
        n_chunks = schedule.n_chunks[unit].astype(np.int64)
        cut = np.flatnonzero(n_chunks > 1)
        if len(cut):
            few, chunk, tensor = row[cut], schedule.chunk[unit[cut]].astype(np.int64), tensor[cut]
            at, first, last = self.boxes.ranges(
                few, chunk, n_chunks[cut], self.elements.ndim[tensor], self.elements.step[tensor]
            )
            part = volumes[cut]
            part[(self.boxes.dim[few] < 0) & (chunk > 0)] = 0
            part[at] = self.slices[few[at]] * (last - first)
            volumes[cut] = part
        if len(self.elements.bits) and (self.elements.bits % 8 == 0).all():
            return volumes * (bits // 8)
        return volumes * bits // 8


class Stream:
    """Entries, each of which runs a row some slots after the round of every unit of its bin.

    Args:
        units: the units.
        row: row of each entry.
        offset: slots after the round in which it runs.
        ranks: number of ranks, which limits how many slots a block has.
    """

    def __init__(self, units: UnitRows, row: Ints, offset: Ints, ranks: int) -> None:
        self.units, self.ranks = units, max(1, ranks)
        low = int(offset.min(initial=0))
        width = int(offset.max(initial=0)) - low + 1
        bin_of = units.row_bin[row]
        keys = bin_of * width + (offset - low)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        self.entry_order: Ints = order
        self.row: Ints = row[order]
        # runs of entries with equal bin and offset
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self.starts, self.counts = starts, np.diff(np.append(starts, len(keys)))
        run_bin, run_offset = keys[starts] // width, keys[starts] % width + low
        self.bin_start = np.searchsorted(bin_of[order], np.arange(units.bins + 1))
        first = np.searchsorted(run_bin, np.arange(units.bins + 1))
        scheduled = np.flatnonzero(units.bin >= 0)
        bins = units.bin[scheduled]
        many = first[bins + 1] - first[bins]
        self.unit: Ints = np.repeat(scheduled, many)
        kind = np.arange(len(self.unit)) - np.repeat(np.cumsum(many) - many - first[bins], many)
        slot = units.tables.schedule.round[self.unit] + run_offset[kind]
        order = np.argsort(slot, kind="stable")
        self.slot, self.unit, self.kind = slot[order], self.unit[order], kind[order]
        self._hold()

    def _hold(self) -> None:
        """Compute the bytes of entries once for all units that are alike, unless too many differ."""
        units, schedule = self.units, self.units.tables.schedule
        self.held: Ints | None = None
        scheduled = np.flatnonzero(units.bin >= 0)
        alike = units.elements.bits * 64 + units.elements.ndim
        key = np.zeros(len(scheduled), dtype=np.int64)
        for column in (
            alike[schedule.tensor[scheduled]],
            units.bin[scheduled],
            schedule.n_chunks[scheduled].astype(np.int64),
            schedule.chunk[scheduled].astype(np.int64),
        ):
            size = int(column.max(initial=0)) + 1
            key = np.unique(key * size + column, return_inverse=True)[1]
        _, first, alike = np.unique(key, return_index=True, return_inverse=True)
        chosen = scheduled[first]
        bins = units.bin[chosen]
        sizes = self.bin_start[bins + 1] - self.bin_start[bins]
        if int(sizes.sum()) > MAX_HELD_ROWS:
            return
        unit = np.repeat(chosen, sizes)
        shift = np.cumsum(sizes) - sizes - self.bin_start[bins]
        entry = np.arange(len(unit)) - np.repeat(shift, sizes)
        self.held = units.nbytes(unit, self.row[entry])
        # position of an entry's bytes, less the entry
        self.held_at = np.zeros(len(units.bin), dtype=np.int64)
        self.held_at[scheduled] = shift[alike]

    def blocks(self) -> Iterator[Block]:
        """All entries in order of their slots; every slot is in one block."""
        counts = self.counts[self.kind]
        total = np.concatenate(([0], np.cumsum(counts)))
        ends = np.append(np.flatnonzero(np.diff(self.slot)) + 1, len(self.slot))
        most_slots = max(1, BLOCK_COUNTERS // self.ranks)
        begin, number = 0, 0
        while begin < len(self.slot):
            # the last slot with which the block is still small, or at least one
            wanted = int(np.searchsorted(total[ends], total[begin] + BLOCK_OPS, side="right"))
            after = max(number + 1, min(wanted, number + most_slots))
            end = int(ends[after - 1])
            yield self._block(begin, end, counts[begin:end])
            begin, number = end, after

    def _block(self, begin: int, end: int, counts: Ints) -> Block:
        kind, unit, slot = self.kind[begin:end], self.unit[begin:end], self.slot[begin:end]
        new = np.diff(slot, prepend=slot[0] - 1) > 0
        first = np.cumsum(counts) - counts
        run = np.repeat(np.arange(len(counts)), counts)
        entry = np.arange(len(run)) + (self.starts[kind] - first)[run]
        if self.held is None:
            nbytes = self.units.nbytes(unit[run], self.row[entry])
        else:
            nbytes = self.held[entry + self.held_at[unit][run]]
        return Block(slot[new], unit, first, run, (np.cumsum(new) - 1)[run], entry, nbytes)
