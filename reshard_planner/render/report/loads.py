"""What ports carry in every slot of a plan, and what tensors move, from one pass over its units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.stream import Block, Stream, UnitRows
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LANES = ("NIC, out", "NIC, in", "NVLink, out", "NVLink, in")
"""Ports of a rank in each direction, in the order of lanes."""

KINDS = 8
"""Kinds of flows per medium: the roles, of which broken plans may have unknown ones."""

MAX_PLACES = 512
"""Places above which flows between them are not summed: their number grows with the square."""

MAX_RANKS_AS_PLACES = 64
"""Ranks up to which every rank is a place of its own; else every domain is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """What moves between places: ranks, or domains where there are many ranks.

    Attributes:
        by_rank: whether places are ranks.
        src: number of the rank or domain that sends, int64 of shape (flows,).
        dst: likewise, that receives.
        medium: a :class:`~reshard_planner.transfer.Medium`, likewise.
        role: a :class:`~reshard_planner.transfer.Role`, likewise.
        nbytes: bytes, likewise.
    """

    by_rank: bool
    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Sums over all operations of a plan.

    Attributes:
        ranks: all ranks of the spec and of the routes, ascending, int64 of shape (ranks,).
        ports: their capacities.
        begin_s: when each slot begins if every slot waits for its busiest port at its datasheet rate, and
            then for a start-up time; with the end of the last one, float64 of shape (slots + 1,).
        bins: first slot of each of the spans of slots that follow, with the number of slots at the end, int64
            of shape (spans + 1,).
        lanes: bytes per lane, rank and span of slots, int64 of shape (lanes, ranks, spans).
        uplink: bytes out of and into each pod, int64 of shape (2, pods).
        moved: bytes per medium and tensor of the spec, int64 of shape (media, tensors).
        first_slot: first slot in which each tensor moves, -1 for none, int64 of shape (tensors,).
        last_slot: likewise the last one.
        flows: what moves between places; None where there are too many.
    """

    ranks: Ints
    ports: Ports
    begin_s: Floats
    bins: Ints
    lanes: Ints
    uplink: Ints
    moved: Ints
    first_slot: Ints
    last_slot: Ints
    flows: Flows | None


def measure_loads(plan: Plan, max_bins: int) -> Loads:
    """Sum up a plan, without ever holding its operations.

    Args:
        plan: the plan.
        max_bins: most spans of slots that bytes are kept apart by.

    Raises:
        TopologyError: if a rank runs on no GPU of the topology.
        TableError: if the tables rename impossible ranks.
    """
    counter = _Counter(plan, max_bins)
    routes = plan.tables.routes
    rows = np.arange(len(routes), dtype=np.int64)
    stream = Stream(counter.units, rows, routes.offset.astype(np.int64), len(counter.ranks))
    for block in stream.blocks():
        counter.add(block, stream.row)
    return counter.result()


class _Counter:
    """Counters that blocks of operations are added to."""

    def __init__(self, plan: Plan, max_bins: int) -> None:
        self.plan, tables = plan, plan.tables
        self.units = UnitRows(plan.spec, tables)
        size = int(max(tables.routes.src.max(initial=-1), tables.routes.dst.max(initial=-1), *plan.ranks, -1))
        self.renamed_by, names = tables.groups.renamings(size + 1)
        used = np.zeros(names.shape[1], dtype=bool)
        used[tables.routes.src], used[tables.routes.dst] = True, True
        after = np.zeros(names.shape[1], dtype=bool)
        after[names[:, used]] = True
        after[list(plan.ranks)] = True
        self.ranks: Ints = np.flatnonzero(after)
        self.names: Ints = (np.cumsum(after) - 1)[names]
        self.ports = Ports.of(plan.spec.topology, self.ranks.tolist())
        offset = int(tables.routes.offset.max(initial=-1))
        self.slots = max(
            plan.certificate.schedule.slots, int(tables.schedule.round.max(initial=-1)) + offset + 1
        )
        self.slots = max(0, self.slots if len(tables.routes) else 0)
        bins = min(max_bins, self.slots)
        self.bins: Ints = np.arange(bins + 1) * self.slots // max(1, bins)
        self.bin_of: Ints = np.searchsorted(self.bins, np.arange(self.slots), side="right") - 1
        self.lanes = np.zeros((len(LANES), len(self.ranks), bins), dtype=np.int64)
        self.slot_s = np.zeros(self.slots)
        self.uplink = np.zeros((2, len(self.ports.uplink_bytes_per_s)), dtype=np.int64)
        tensors = len(plan.spec.tensors)
        self.moved = np.zeros((tensors, len(Medium)), dtype=np.int64)
        self.first = np.full(tensors, self.slots, dtype=np.int64)
        self.last = np.full(tensors, -1, dtype=np.int64)
        self._choose_places()

    def _choose_places(self) -> None:
        self.by_rank = len(self.ranks) <= MAX_RANKS_AS_PLACES
        place = self.ranks if self.by_rank else self.ports.domain[self.ranks]
        self.place_names, place_of = np.unique(place, return_inverse=True)
        self.place_of: Ints = place_of.reshape(-1)
        count = len(self.place_names) if len(self.place_names) <= MAX_PLACES else 0
        self.flows = np.zeros((count, count, len(Medium), KINDS), dtype=np.int64)

    def add(self, block: Block, row_of: Ints) -> None:
        """Add one block of operations."""
        tables = self.plan.tables
        routes, rows = tables.routes, row_of[block.entry]
        renaming = self.renamed_by[tables.schedule.group[block.unit]][block.run]
        src = self.names[renaming, routes.src[rows]]
        dst = self.names[renaming, routes.dst[rows]]
        medium = routes.medium[rows].astype(np.int64)
        tensor = tables.schedule.tensor[block.unit].astype(np.int64)
        np.add.at(self.moved.reshape(-1), tensor[block.run] * len(Medium) + medium, block.nbytes)
        moves = np.flatnonzero(np.add.reduceat(block.nbytes, block.first))  # not chunks of no elements
        slot = block.slots[block.slot[block.first[moves]]]
        np.minimum.at(self.first, tensor[moves], slot)
        np.maximum.at(self.last, tensor[moves], slot)
        if len(self.flows):
            role = np.minimum(routes.role[rows].astype(np.int64), KINDS - 1)
            key = (self.place_of[src] * len(self.flows) + self.place_of[dst]) * len(Medium) + medium
            np.add.at(self.flows.reshape(-1), key * KINDS + role, block.nbytes)
        loads = np.zeros((len(block.slots), len(LANES), len(self.ranks)), dtype=np.int64)
        for media, first in ((Medium.NETWORK, 0), (Medium.NVLINK, 2)):
            at = np.flatnonzero(medium == media)
            for lane, end in ((first, src), (first + 1, dst)):
                key = (block.slot[at] * len(LANES) + lane) * len(self.ranks) + end[at]
                np.add.at(loads.reshape(-1), key, block.nbytes[at])
        np.add.at(self.lanes.transpose(2, 0, 1), self.bin_of[block.slots], loads)
        crossing = self._cross(block, src, dst, medium)
        self.uplink += crossing.sum(axis=0)
        self.slot_s[block.slots] = self._times(loads, crossing)

    def _cross(self, block: Block, src: Ints, dst: Ints, medium: Ints) -> Ints:
        """Bytes out of and into every pod, per slot of the block, shape (slots, 2, pods)."""
        loads = np.zeros((len(block.slots), *self.uplink.shape), dtype=np.int64)
        if loads.size:
            ends = [self.ports.pod[self.ranks[end]] for end in (src, dst)]
            crosses = (ends[0] != ends[1]) & (medium == Medium.NETWORK)
            for way, pod in enumerate(ends):
                at = np.flatnonzero(crosses & (pod >= 0))
                np.add.at(loads[:, way], (block.slot[at], pod[at]), block.nbytes[at])
        return loads

    def _times(self, loads: Ints, crossing: Ints) -> Floats:
        """Time of the busiest port of each slot, and a start-up time if anything moves, shape (slots,)."""
        ports = self.ports
        nics = sum_by_nic(loads[:, :2], self.ranks, ports)
        with np.errstate(divide="ignore", invalid="ignore"):  # a port without a rate carries nothing
            times = [
                nics / ports.nic_bytes_per_s,
                loads[:, 2:] / ports.nvlink_bytes_per_s[self.ranks],
                crossing / ports.uplink_bytes_per_s,
            ]
        longest = np.zeros(len(loads))
        for each in times:
            finite = np.where(np.isfinite(each), each, 0.0)
            np.maximum(longest, finite.max(axis=(1, 2), initial=0.0), out=longest)
        moves = loads.any(axis=(1, 2))
        found: Floats = longest + np.where(moves, self.plan.spec.topology.alpha_s, 0.0)
        return found

    def result(self) -> Loads:
        """The sums."""
        flows = None
        if len(self.flows) or not len(self.place_names):
            src, dst, medium, role = np.nonzero(self.flows)
            nbytes = self.flows[src, dst, medium, role]
            order = np.lexsort((role, medium, dst, src, -nbytes))
            names = self.place_names
            columns = (names[src], names[dst], medium, role, nbytes)
            flows = Flows(self.by_rank, *(column[order] for column in columns))
        return Loads(
            self.ranks,
            self.ports,
            np.concatenate(([0.0], np.cumsum(self.slot_s))),
            self.bins,
            self.lanes,
            self.uplink,
            self.moved.T.copy(),
            np.where(self.last < 0, -1, self.first),
            self.last,
            flows,
        )


def sum_by_nic(loads: Ints, ranks: Ints, ports: Ports) -> Ints:
    """Sum what ranks carry over the NIC groups that they have.

    Args:
        loads: per rank on the last axis, shape (..., ranks).
        ranks: their numbers.
        ports: their capacities.

    Returns:
        The sums, shape (..., groups).
    """
    group = ports.nic_group[ranks]
    with_nic = np.flatnonzero(group >= 0)
    sums = np.zeros((len(ports.nic_bytes_per_s), *loads.shape[:-1]), dtype=np.int64)
    np.add.at(sums, group[with_nic], np.moveaxis(loads, -1, 0)[with_nic])
    return np.moveaxis(sums, 0, -1)
