"""Running loads of NICs and NVLink ports, to choose the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from reshard_planner.capacities import Capacities
from reshard_planner.errors import UnsupportedError
from reshard_planner.topology import Ports


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
        self.nvlink_in = [0] * len(self.domain_of)
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
                    f"ranks {list(ranks)} must move bytes over the network but have no NIC;"
                    " using a neighbour's NIC is not implemented yet"
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

    def add_nvlink(self, src: int, dst: int, nbytes: int) -> None:
        """Count a transfer within a domain."""
        self.nvlink_out[src] += nbytes
        self.nvlink_in[dst] += nbytes

    def busiest(self) -> float:
        """Time of the busiest port, in seconds."""
        rate, nvlink = self.capacities.nic_rate, self.capacities.nvlink
        times = [0.0]
        for loads in (self.nic_in, self.nic_out):
            times.extend(load / speed for load, speed in zip(loads, rate, strict=True) if load)
        for loads in (self.nvlink_in, self.nvlink_out):
            times.extend(load / speed for load, speed in zip(loads, nvlink, strict=True) if load)
        return max(times)


def turned(ranks: Sequence[int], turn: int) -> Sequence[int]:
    """The ranks from the one whose turn it is, round to the one before."""
    start = turn % len(ranks)
    return (*ranks[start:], *ranks[:start]) if start else ranks
