"""Running loads of NICs and NVLink ports, to choose the least loaded."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.bounds import Capacities
from reshard_planner.errors import UnsupportedError
from reshard_planner.topology import Ports


class Loads:
    """Bytes routed so far over every port, and the time they take at datasheet rates.

    Choices compare exact integers first turned into seconds, so that equal loads tie and the tie is
    broken by the rotation that the caller gives, never by rounding.
    """

    def __init__(self, ports: Ports, capacities: Capacities) -> None:
        self.capacities = capacities
        self.domain_of = capacities.domain_of
        groups = len(ports.nic_bytes_per_s)
        self.nic_in = [0] * groups
        self.nic_out = [0] * groups
        self.nvlink_in = [0] * len(self.domain_of)
        self.nvlink_out = [0] * len(self.domain_of)

    def receiver(self, ranks: Sequence[int], nbytes: int, turn: int) -> int:
        """The rank whose NIC is done taking in first; among equals the one that emits least, then by turn.

        Raises:
            UnsupportedError: if none of them has a NIC.
        """
        group, rate = self.capacities.nic_group, self.capacities.nic_rate
        usable = [rank for rank in ranks if group[rank] >= 0]
        if not usable:
            raise UnsupportedError(
                f"ranks {list(ranks)} must take in bytes over the network but have no NIC;"
                " receiving over a neighbour's NIC is not implemented yet"
            )
        count = len(usable)
        best = min(
            range(count),
            key=lambda i: (
                (self.nic_in[group[usable[i]]] + nbytes) / rate[group[usable[i]]],
                self.nic_out[group[usable[i]]] / rate[group[usable[i]]],
                (i - turn) % count,
            ),
        )
        return usable[best]

    def emitter(self, holders: Sequence[int], relays: Sequence[int], nbytes: int, turn: int) -> int:
        """The rank whose NIC is done emitting first; among equals a relay, then by turn.

        Raises:
            UnsupportedError: if none of them has a NIC.
        """
        group, rate = self.capacities.nic_group, self.capacities.nic_rate
        usable = [(rank, 0) for rank in relays] + [(rank, 1) for rank in holders if group[rank] >= 0]
        if not usable:
            raise UnsupportedError(
                f"ranks {list(holders)} must emit bytes over the network but have no NIC;"
                " sending over a neighbour's NIC is not implemented yet"
            )
        count = len(usable)
        best = min(
            range(count),
            key=lambda i: (
                (self.nic_out[group[usable[i][0]]] + nbytes) / rate[group[usable[i][0]]],
                usable[i][1],
                (i - turn) % count,
            ),
        )
        return usable[best][0]

    def sender(self, ranks: Sequence[int], nbytes: int, turn: int) -> tuple[int, float]:
        """The rank whose NVLink port is done sending first, and that time; among equals by turn."""
        count = len(ranks)
        rate = self.capacities.nvlink
        times = [(self.nvlink_out[rank] + nbytes) / rate[rank] for rank in ranks]
        best = min(range(count), key=lambda i: (times[i], (i - turn) % count))
        return ranks[best], times[best]

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
