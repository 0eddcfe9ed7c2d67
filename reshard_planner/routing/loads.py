"""Running loads of NICs and NVLink ports, to choose the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np
from numpy.typing import NDArray

from reshard_planner.capacities import Capacities
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.nics import NicPorts
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Floats = NDArray[np.float64]


class Loads:
    """Bytes routed so far over every port, and the time they take at datasheet rates.

    Loads are exact integers and become seconds only to be compared, so that equal loads tie and the tie is
    broken by the turn that the caller gives, never by rounding. Candidates are tried in order of the turn.
    """

    def __init__(self, ports: Ports, capacities: Capacities) -> None:
        self.capacities = capacities
        self.domain_of = capacities.domain_of
        groups = len(ports.nic_bytes_per_s)
        self.nic_in = [0] * groups
        self.nic_out = [0] * groups
        self.nvlink_out = [0] * len(self.domain_of)
        self._usable: dict[tuple[int, ...], tuple[int, ...]] = {}

    def with_nic(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the ranks that have a NIC.

        Raises:
            UnsupportedError: if none has.
        """
        if ranks not in self._usable:
            usable = tuple(rank for rank in ranks if self.capacities.nic_group[rank] >= 0)
            if not usable:
                raise UnsupportedError(
                    f"one of the ranks {list(ranks)} must move bytes over the network, but none has a NIC;"
                    " expected a NIC for one of them, or the strategy 'optimal', which uses neighbours' NICs"
                )
            self._usable[ranks] = usable
        return self._usable[ranks]

    def receiver(self, ranks: tuple[int, ...], nbytes: int, turn: int) -> int:
        """The rank whose NIC is done taking in first; among equals the one that emits least, then by turn.

        Raises:
            UnsupportedError: if none of them has a NIC.
        """
        group, rate = self.capacities.nic_group, self.capacities.nic_rate
        usable = self.with_nic(ranks)
        best, least = usable[0], (inf, inf)
        for rank in turned(usable, turn):
            port = group[rank]
            time = (self.nic_in[port] + nbytes) / rate[port]
            if time <= least[0]:
                key = (time, self.nic_out[port] / rate[port])
                if key < least:
                    best, least = rank, key
        return best

    def emitter(self, holders: tuple[int, ...], relays: Sequence[int], nbytes: int, turn: int) -> int:
        """The rank whose NIC is done emitting first; among equals a relay, then by turn.

        Raises:
            UnsupportedError: if no holder has a NIC.
        """
        group, rate = self.capacities.nic_group, self.capacities.nic_rate
        usable = self.with_nic(holders)
        best, least = usable[0], inf
        for rank in (*relays, *turned(usable, turn)):
            port = group[rank]
            time = (self.nic_out[port] + nbytes) / rate[port]
            if time < least:
                best, least = rank, time
        return best

    def sender(self, ranks: Sequence[int], nbytes: int, turn: int) -> tuple[int, float]:
        """The rank whose NVLink port is done sending first, and that time; among equals by turn."""
        rate = self.capacities.nvlink
        best, least = ranks[0], inf
        for rank in turned(ranks, turn):
            time = (self.nvlink_out[rank] + nbytes) / rate[rank]
            if time < least:
                best, least = rank, time
        return best, least

    def add_network(self, src: int, dst: int, nbytes: int) -> None:
        """Count a transfer from NIC to NIC."""
        group = self.capacities.nic_group
        self.nic_out[group[src]] += nbytes
        self.nic_in[group[dst]] += nbytes

    def add_nvlink(self, src: int, nbytes: int) -> None:
        """Count a transfer within a domain; what arrives is the same whoever sends it."""
        self.nvlink_out[src] += nbytes


@dataclass(frozen=True, slots=True, eq=False)
class PortTimes:
    """Time of every port and direction for all tensors, in seconds at datasheet rates, float64.

    Attributes:
        nic_in: per NIC group.
        nic_out: per NIC group.
        nvlink_in: per rank.
        nvlink_out: per rank.
        uplink_in: per pod.
        uplink_out: per pod.
    """

    nic_in: Floats
    nic_out: Floats
    nvlink_in: Floats
    nvlink_out: Floats
    uplink_in: Floats
    uplink_out: Floats

    @property
    def busiest(self) -> float:
        """Time of the busiest port."""
        columns = (getattr(self, column.name) for column in fields(self))
        return max(float(column.max(initial=0.0)) for column in columns)


def measure_ports(spec: ReshardSpec, ports: Ports, forests: Sequence[Forest]) -> PortTimes:
    """What forests load every port with."""
    groups, size, pods = len(ports.nic_bytes_per_s), len(ports.domain), len(ports.uplink_bytes_per_s)
    nics = NicPorts(ports)
    nic, nvlink, uplink = np.zeros((2, groups)), np.zeros((2, size)), np.zeros((2, pods))
    for forest in forests:
        bits = spec.tensors[forest.members[0].tensors[0]].bits
        for at, sending in enumerate((False, True)):
            nic[at] += nics.loads(forest, bits, sending=sending)[:groups]
        nbytes = forest.nbytes(bits)
        crosses, stays = forest.medium == Medium.NETWORK, forest.medium == Medium.NVLINK
        for member in forest.members:
            weights = nbytes * len(member.tensors)
            ends = [member.rename(ranks) for ranks in (forest.dst, forest.src)]
            for at, ranks in enumerate(ends):
                nvlink[at] += np.bincount(ranks[stays], weights=weights[stays], minlength=size)
            if not pods:
                continue
            between = [ports.pod[ranks] for ranks in ends]
            for at, pod in enumerate(between):
                leaves = crosses & (between[0] != between[1]) & (pod >= 0)
                uplink[at] += np.bincount(pod[leaves], weights=weights[leaves], minlength=pods)
    nic /= ports.nic_bytes_per_s
    nvlink /= np.maximum(1, ports.nvlink_bytes_per_s)
    uplink /= ports.uplink_bytes_per_s
    return PortTimes(*nic, *nvlink, *uplink)


def count_nbytes(spec: ReshardSpec, forests: Sequence[Forest]) -> tuple[int, int, int]:
    """Bytes that forests move, by medium, in order of :class:`reshard_planner.transfer.Medium`."""
    sums = [0, 0, 0]
    for forest in forests:
        nbytes = forest.nbytes(spec.tensors[forest.members[0].tensors[0]].bits)
        for medium in Medium:
            sums[medium] += int(nbytes[forest.medium == medium].sum()) * forest.tensor_count
    return sums[0], sums[1], sums[2]


def most_peers(forests: Sequence[Forest], medium: Medium) -> int:
    """Most ranks that any rank exchanges bytes with over a medium."""
    keys: list[NDArray[np.int64]] = []
    for forest in forests:
        at = forest.medium == medium
        pairs = np.unique(forest.src[at] << 32 | forest.dst[at])
        src, dst = pairs >> 32, pairs & 0xFFFFFFFF
        for member in forest.members:
            here, there = member.rename(src), member.rename(dst)
            keys.extend((here << 32 | there, there << 32 | here))
    if not keys:
        return 0
    ranks = np.unique(np.concatenate(keys)) >> 32
    return int(np.bincount(ranks).max(initial=0))


def turned(ranks: Sequence[int], turn: int) -> Sequence[int]:
    """The ranks from the one whose turn it is, round to the one before."""
    start = turn % len(ranks)
    return (*ranks[start:], *ranks[:start]) if start else ranks
