"""What ports carry in every slot of a plan, and what tensors move, from one pass over its units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.porttimes import PortTimes
from reshard_planner.ir.ranknumbers import number_ranks
from reshard_planner.ir.stream import Block, Stream, UnitRows
from reshard_planner.render.places import RankFacts, choose_places
from reshard_planner.render.report.edges import KINDS, Edge, EdgeTensors, Flows, FlowSums
from reshard_planner.render.storing import storing_ranks
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LANES = ("NIC, out", "NIC, in", "NVLink, out", "NVLink, in")
"""Ports of a rank in each direction, in the order of lanes."""

MAX_PLACES = 256
"""Places above which domains that are alike are joined: flows between them grow with the square."""

MAX_RANKS_AS_PLACES = 64
"""Ranks up to which every rank is a place of its own; else every domain is one."""


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
        flows: what moves between places.
        edges: bytes of each tensor over each edge of the picture of transfers.
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
    flows: Flows
    edges: EdgeTensors


def measure_loads(plan: Plan, max_bins: int, edges: Sequence[Edge] = ()) -> Loads:
    """Sum up a plan, without ever holding its operations.

    Args:
        plan: the plan.
        max_bins: most spans of slots that bytes are kept apart by.
        edges: edges of the picture of transfers.

    Raises:
        TopologyError: if a rank runs on no GPU of the topology.
        TableError: if the tables rename impossible ranks.
    """
    counter = _Counter(plan, max_bins, edges)
    for block in counter.stream.blocks():
        counter.add(block, counter.stream.row)
    return counter.result()


class _Counter:
    """Counters that blocks of operations are added to."""

    def __init__(self, plan: Plan, max_bins: int, edges: Sequence[Edge]) -> None:
        self.plan, tables = plan, plan.tables
        self.number = number_ranks(tables, max(plan.ranks, default=-1) + 1, plan.ranks)
        self.ranks: Ints = self.number.ranks
        self.ports = Ports.of(plan.spec.topology, self.ranks.tolist())
        self.times = PortTimes(self.ranks, self.ports)
        rows, offset = np.arange(len(tables.routes)), tables.routes.offset.astype(np.int64)
        self.stream = Stream(UnitRows(plan.spec, tables), rows, offset, len(self.ranks))
        # rows of the longest offset may be of units that start early
        self.slots = int(self.stream.slot.max(initial=-1)) + 1
        bins = min(max_bins, self.slots)
        self.bins: Ints = np.arange(bins + 1) * self.slots // max(1, bins)
        self.bin_of: Ints = np.searchsorted(self.bins, np.arange(self.slots), side="right") - 1
        self.lanes = np.zeros((len(LANES), len(self.ranks), bins), dtype=np.int64)
        self.slot_s = np.zeros(self.slots)
        self.uplink = np.zeros((2, len(self.ports.uplink_bytes_per_s)), dtype=np.int64)
        sizes = np.array([tensor.nbytes for tensor in plan.spec.tensors], dtype=np.int64)
        self.moved = np.zeros((len(sizes), len(Medium)), dtype=np.int64)
        self.first = np.full(len(sizes), self.slots, dtype=np.int64)
        self.last = np.full(len(sizes), -1, dtype=np.int64)
        facts = rank_facts(plan, self.ports)
        places = choose_places(
            self.ranks.tolist(), facts, most_ranks=MAX_RANKS_AS_PLACES, most_places=MAX_PLACES
        )
        self.flows = FlowSums(places, self.ranks)
        self.edges = EdgeTensors(edges, sizes, self.ranks)

    def add(self, block: Block, row_of: Ints) -> None:
        """Add one block of operations."""
        tables = self.plan.tables
        routes, rows = tables.routes, row_of[block.entry]
        src, dst = self.number.ends(block, tables.schedule.group, routes.src[rows], routes.dst[rows])
        medium = routes.medium[rows].astype(np.int64)
        role = np.minimum(routes.role[rows].astype(np.int64), KINDS - 1)
        tensor = tables.schedule.tensor[block.unit].astype(np.int64)
        np.add.at(self.moved.reshape(-1), tensor[block.run] * len(Medium) + medium, block.nbytes)
        moves = np.flatnonzero(np.add.reduceat(block.nbytes, block.first))  # not chunks of no elements
        slot = block.slots[block.slot[block.first[moves]]]
        np.minimum.at(self.first, tensor[moves], slot)
        np.maximum.at(self.last, tensor[moves], slot)
        self.flows.add(src, dst, medium, role, block.nbytes)
        self.edges.add(src, dst, medium, role, tensor[block.run], block.nbytes)
        self._add_slots(block, src, dst, medium)

    def _add_slots(self, block: Block, src: Ints, dst: Ints, medium: Ints) -> None:
        """Add what ports carry in the slots of a block, and how long these take."""
        loads = np.zeros((2, 2, len(block.slots), len(self.ranks)), dtype=np.int64)
        for load, media in zip(loads, (Medium.NETWORK, Medium.NVLINK), strict=True):
            at = np.flatnonzero(medium == media)
            for one_way, end in zip(load, (src, dst), strict=True):
                np.add.at(one_way.reshape(-1), block.slot[at] * len(self.ranks) + end[at], block.nbytes[at])
        by_slot = loads.reshape(len(LANES), *loads.shape[2:]).transpose(1, 0, 2)
        np.add.at(self.lanes.transpose(2, 0, 1), self.bin_of[block.slots], by_slot)
        crossing = self.times.cross(block, src, dst, medium == Medium.NETWORK)
        self.uplink += crossing.sum(axis=1)
        start_s = np.where(loads.any(axis=(0, 1, 3)), self.plan.spec.topology.alpha_s, 0.0)
        self.slot_s[block.slots] = self.times.busiest_s(loads[0], loads[1], crossing) + start_s

    def result(self) -> Loads:
        """The sums."""
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
            self.flows.result(),
            self.edges,
        )


def rank_facts(plan: Plan, ports: Ports) -> RankFacts:
    """What joins the ranks of a plan: their domains, and what they hold and need."""
    holds, needs = (storing_ranks(plan.spec.tensors, side, len(ports.domain)) for side in ("src", "dst"))
    return RankFacts(ports.domain, holds, needs)


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
