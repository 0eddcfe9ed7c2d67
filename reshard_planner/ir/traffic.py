"""Traffic: what a plan moves, per port, slot and pair, summed up without holding its operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.porttimes import PortTimes
from reshard_planner.ir.ranknumbers import number_ranks
from reshard_planner.ir.stream import Block, Stream, UnitRows
from reshard_planner.ir.tables import Tables
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_PENDING_PAIRS = 2**22
"""Pairs of ranks that are collected before those named twice are dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Sums over all operations of a plan.

    Attributes:
        slots: number of slots: the last one in which anything runs, plus 1.
        nbytes: bytes by medium, in order of :class:`reshard_planner.transfer.Medium`.
        transfers: transfers by medium: pieces of a tensor that a row moves.
        arriving: bytes that go into destination tiles, per tensor of the spec, int64.
        network: bytes out and in over the network per rank, int64 of shape (2, ranks).
        nvlink: bytes out and in over NVLink per rank, likewise.
        uplink: bytes out of and into each pod, int64 of shape (2, pods).
        busiest_s: time of the busiest port in each slot that moves bytes between ranks, in seconds.
        messages: distinct pairs of sender and receiver in a slot, by medium, over all slots.
        peers_max: most ranks that any rank exchanges bytes with.
        peers_in_slot_max: the same within one slot.
        network_peers: ranks that each rank exchanges bytes with over the network, int64 of shape (ranks,).
        nvlink_peers: the same over NVLink.
        send_nbytes: bytes that each rank sends in its largest slot, likewise.
        receive_nbytes: bytes that each rank receives in its largest slot, likewise.
        scratch_nbytes: most bytes that each rank keeps in scratch at one time, likewise.
        rail_nbytes: bytes over the network between ranks of one rail.
    """

    slots: int
    nbytes: tuple[int, int, int]
    transfers: tuple[int, int, int]
    arriving: Ints
    network: Ints
    nvlink: Ints
    uplink: Ints
    busiest_s: Floats
    messages: int
    peers_max: int
    peers_in_slot_max: int
    network_peers: Ints
    nvlink_peers: Ints
    send_nbytes: Ints
    receive_nbytes: Ints
    scratch_nbytes: Ints
    rail_nbytes: int


def measure_traffic(spec: ReshardSpec, tables: Tables, ports: Ports) -> Traffic:
    """Sum up the operations of a plan, some slots at a time.

    Memory grows with the rows and units of the tables and with the operations of one slot, not with all
    operations; each of them takes a few tens of nanoseconds.

    Args:
        spec: what the plan was compiled from.
        tables: the plan.
        ports: capacities per rank.

    Raises:
        IndexError: if the tables refer to what does not exist.
    """
    counter = _Counter(spec, tables, ports)
    rows = np.arange(len(tables.routes), dtype=np.int64)
    stream = Stream(counter.units, rows, tables.routes.offset.astype(np.int64), counter.size)
    lanes = _Lanes(stream, tables)
    for block in stream.blocks():
        counter.count(block, lanes)
    counter.count_scratch()
    return counter.result()


class _Lanes:
    """Columns of a stream's entries that operations are counted by."""

    def __init__(self, stream: Stream, tables: Tables) -> None:
        row, routes = stream.row, tables.routes
        self.src: Ints = routes.src[row].astype(np.int64)
        self.dst: Ints = routes.dst[row].astype(np.int64)
        self.medium: Ints = routes.medium[row].astype(np.int64)
        scratch = routes.scratch[row] > 0
        self.filling: Ints | None = (~scratch).astype(np.int64) if scratch.any() else None
        self.local = bool((self.medium == Medium.LOCAL).any())


class _Counter:
    """Counters that blocks of operations are added to."""

    def __init__(self, spec: ReshardSpec, tables: Tables, ports: Ports) -> None:
        self.tables, self.ports = tables, ports
        self.units = UnitRows(spec, tables)
        self.number = number_ranks(tables, len(ports.domain))
        self.ranks, self.names, self.renamed_by = self.number.ranks, self.number.names, self.number.renamed_by
        self.size = size = len(self.ranks)
        self.bits = max(1, size).bit_length()
        self.times = PortTimes(self.ranks, ports)
        self.slots = 0
        self.loads = np.zeros((2, len(Medium), size), dtype=np.int64)
        self.uplink = np.zeros((2, len(ports.uplink_bytes_per_s)), dtype=np.int64)
        self.largest = np.zeros((2, size), dtype=np.int64)
        self.scratch = np.zeros(size, dtype=np.int64)
        self.arriving = np.zeros(len(spec.tensors), dtype=np.int64)
        self.busiest: list[Floats] = []
        self.messages = 0
        self.peers_in_slot_max = 0
        known = self.ranks < len(ports.rails)
        self.rails = np.where(known, np.append(ports.rails, -1)[np.where(known, self.ranks, -1)], -1)
        self.has_rails = bool((self.rails >= 0).any())
        self.rail_nbytes = 0

    def count(self, block: Block, lanes: _Lanes) -> None:
        """Add one block of operations."""
        group = self.tables.schedule.group
        src, dst = self.number.ends(block, group, lanes.src[block.entry], lanes.dst[block.entry])
        loads = np.zeros((2, len(block.slots), len(Medium), self.size), dtype=np.int64)
        lane = (block.slot * len(Medium) + lanes.medium[block.entry]) * self.size
        np.add.at(loads[0].reshape(-1), lane + src, block.nbytes)
        np.add.at(loads[1].reshape(-1), lane + dst, block.nbytes)
        network = lanes.medium[block.entry] == Medium.NETWORK
        if self.has_rails:
            paired = network & (self.rails[src] >= 0) & (self.rails[src] == self.rails[dst])
            self.rail_nbytes += int(block.nbytes[paired].sum())
        self._add_loads(block.slots, loads, self.times.cross(block, src, dst, network))
        filling = block.nbytes if lanes.filling is None else block.nbytes * lanes.filling[block.entry]
        tensor = self.tables.schedule.tensor[block.unit]
        np.add.at(self.arriving, tensor, np.add.reduceat(filling, block.first))
        moved = block.nbytes > 0
        medium = lanes.medium[block.entry]
        if lanes.local:
            moved &= medium != Medium.LOCAL
        if moved.all():
            self._add_pairs(len(block.slots), block.slot, src, dst, medium)
        else:
            self._add_pairs(len(block.slots), block.slot[moved], src[moved], dst[moved], medium[moved])

    def _add_loads(self, slots: Ints, loads: Ints, uplink: Ints) -> None:
        self.loads += loads.sum(axis=1)
        self.uplink += uplink.sum(axis=1)
        used = loads[0].any(axis=(1, 2))
        if used.any():
            self.slots = max(self.slots, int(slots[used][-1]) + 1)
        moved = loads[:, :, Medium.NVLINK] + loads[:, :, Medium.NETWORK]
        np.maximum(self.largest, moved.max(axis=1, initial=0), out=self.largest)
        longest = self.times.busiest_s(loads[:, :, Medium.NETWORK], loads[:, :, Medium.NVLINK], uplink)
        self.busiest.append(longest[moved[0].any(axis=1)])

    def _add_pairs(self, slots: int, slot: Ints, src: Ints, dst: Ints, medium: Ints) -> None:
        """Count distinct pairs per slot; messages between two ranks stand next to each other when sorted."""
        if not len(slot):
            return
        bits = self.bits
        pair = slot << 2 * bits | np.minimum(src, dst) << bits | np.maximum(src, dst)
        key = pair << 2 | (src > dst) << 1 | (medium == Medium.NETWORK)
        key.sort()
        new = np.diff(key, prepend=-1) > 0
        self.messages += int(np.count_nonzero(new))
        pair = key[new] >> 2
        pair = pair[np.diff(pair, prepend=-1) > 0]
        peers = np.zeros(slots << bits, dtype=np.int64)
        np.add.at(peers, pair >> bits, 1)
        np.add.at(peers, (pair >> 2 * bits) << bits | pair & (1 << bits) - 1, 1)
        self.peers_in_slot_max = max(self.peers_in_slot_max, int(peers.max(initial=0)))

    def count_scratch(self) -> None:
        """Most bytes in scratch per rank: a row keeps its piece until the last row that reads it has run."""
        routes = self.tables.routes
        rows = np.flatnonzero(routes.scratch)
        if not len(rows):
            return
        offset = routes.offset.astype(np.int64)
        last = offset.copy()
        children = np.flatnonzero(routes.parent >= 0)
        np.maximum.at(last, routes.parent[children], offset[children])
        # the bytes come in the row's slot and are free in the slot after the last read
        stream = Stream(
            self.units,
            np.concatenate((rows, rows)),
            np.concatenate((offset[rows], last[rows] + 1)),
            self.size,
        )
        sign = np.where(stream.entry_order < len(rows), 1, -1)
        dst = routes.dst[stream.row].astype(np.int64)
        live = np.zeros(self.size, dtype=np.int64)
        for block in stream.blocks():
            renaming = self.renamed_by[self.tables.schedule.group[block.unit]]
            rank = self.names[renaming[block.run], dst[block.entry]]
            change = np.zeros((len(block.slots), self.size), dtype=np.int64)
            np.add.at(change.reshape(-1), block.slot * self.size + rank, block.nbytes * sign[block.entry])
            levels = live + np.cumsum(change, axis=0)
            np.maximum(self.scratch, levels.max(axis=0), out=self.scratch)
            live = levels[-1]

    def result(self) -> Traffic:
        """The sums, by rank number."""
        network, nvlink, everyone = self._peers()
        totals = self.loads[0].sum(axis=1).tolist()
        return Traffic(
            self.slots,
            (totals[0], totals[1], totals[2]),
            self._transfers(),
            self.arriving,
            self._by_rank(self.loads[:, Medium.NETWORK]),
            self._by_rank(self.loads[:, Medium.NVLINK]),
            self.uplink,
            np.concatenate(self.busiest) if self.busiest else np.zeros(0),
            self.messages,
            int(everyone.max(initial=0)),
            self.peers_in_slot_max,
            self._by_rank(network),
            self._by_rank(nvlink),
            self._by_rank(self.largest[0]),
            self._by_rank(self.largest[1]),
            self._by_rank(self.scratch),
            self.rail_nbytes,
        )

    def _by_rank(self, column: Ints) -> Ints:
        size = max(len(self.ports.domain), int(self.ranks.max(initial=-1)) + 1)
        spread = np.zeros((*column.shape[:-1], size), dtype=np.int64)
        spread[..., self.ranks] = column
        return spread

    def _transfers(self) -> tuple[int, int, int]:
        """Rows by medium, once for each tensor that has units of their part."""
        schedule, routes = self.tables.schedule, self.tables.routes
        size = self.units.bins
        scheduled = np.flatnonzero(self.units.bin >= 0)
        runs = np.unique(schedule.tensor[scheduled].astype(np.int64) * size + self.units.bin[scheduled])
        times = np.bincount(runs % max(1, size), minlength=size)
        local, nvlink, network = (
            int((np.bincount(self.units.row_bin[routes.medium == medium], minlength=size) * times).sum())
            for medium in Medium
        )
        return local, nvlink, network

    def _peers(self) -> tuple[Ints, Ints, Ints]:
        """Distinct peers of every rank over the network, over NVLink, and over either."""
        schedule, units = self.tables.schedule, self.units
        scheduled = np.flatnonzero(units.bin >= 0)
        size = max(1, units.bins)
        runs = np.unique(schedule.group[scheduled].astype(np.int64) * size + units.bin[scheduled])
        group, bins = runs // size, runs % size
        distinct: dict[tuple[int, ...], Ints] = {}
        found: list[Ints] = []
        pending, most = 0, MAX_PENDING_PAIRS
        starts = np.append(np.flatnonzero(np.diff(group, prepend=-1)), len(group))
        for start, stop in zip(starts.tolist(), starts[1:].tolist(), strict=False):
            chosen = tuple(bins[start:stop].tolist())
            if chosen not in distinct:
                distinct[chosen] = self._pairs(bins[start:stop])
            rows = distinct[chosen]
            name = self.names[self.renamed_by[group[start]]]
            src, dst = name[self.tables.routes.src[rows]], name[self.tables.routes.dst[rows]]
            medium = self.tables.routes.medium[rows].astype(np.int64)
            found.append(
                (np.minimum(src, dst) << self.bits | np.maximum(src, dst)) << 1 | (medium == Medium.NETWORK)
            )
            pending += len(rows)
            if pending > most:
                found = [_distinct(np.concatenate(found))]
                pending = len(found[0])
                most = max(MAX_PENDING_PAIRS, 2 * pending)
        pairs = _distinct(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
        over_network = (pairs & 1).astype(bool)
        ends = pairs >> 1
        return (
            self._ends(ends[over_network]),
            self._ends(ends[~over_network]),
            self._ends(_distinct(ends)),
        )

    def _pairs(self, bins: Ints) -> Ints:
        """One row for each pair of ranks and medium that rows of some bins move bytes between."""
        routes = self.tables.routes
        wanted = np.zeros(self.units.bins, dtype=bool)
        wanted[bins] = True
        rows = np.flatnonzero(wanted[self.units.row_bin] & (routes.medium != Medium.LOCAL))
        size = self.names.shape[1]
        keys = (routes.src[rows].astype(np.int64) * size + routes.dst[rows]) * 2
        keys += routes.medium[rows] == Medium.NETWORK
        first: Ints = np.unique(keys, return_index=True)[1]
        return rows[first]

    def _ends(self, pairs: Ints) -> Ints:
        counts = np.zeros(self.size, dtype=np.int64)
        np.add.at(counts, pairs >> self.bits, 1)
        np.add.at(counts, pairs & (1 << self.bits) - 1, 1)
        return counts


def _distinct(values: Ints) -> Ints:
    """The distinct values, ascending; non-negative ones are expected."""
    ascending = np.sort(values)
    distinct: Ints = ascending[np.diff(ascending, prepend=-1) > 0]
    return distinct
