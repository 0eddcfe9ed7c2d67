"""Capacities: the rates of the ports that the ranks of one reshard have."""

from __future__ import annotations

from collections.abc import Iterable

from reshard_planner.topology import Ports


class Capacities:
    """Rates of the NIC groups and NVLink ports that the ranks of a reshard have, per domain."""

    def __init__(self, ports: Ports, ranks: Iterable[int]) -> None:
        self.domain_of: list[int] = ports.domain.tolist()
        self.nvlink: list[int] = ports.nvlink_bytes_per_s.tolist()
        self.nic_group: list[int] = ports.nic_group.tolist()
        self.nic_rate: list[int] = ports.nic_bytes_per_s.tolist()
        self.groups: dict[int, set[int]] = {}
        self.ranks: dict[int, list[int]] = {}
        for rank in sorted(set(ranks)):
            domain = self.domain_of[rank]
            self.ranks.setdefault(domain, []).append(rank)
            self.groups.setdefault(domain, set())
            if self.nic_group[rank] >= 0:
                self.groups[domain].add(self.nic_group[rank])

    def network(self, domains: Iterable[int]) -> int:
        """Rate of all NICs of some domains, in bytes per second and direction."""
        return sum(self.nic_rate[group] for domain in domains for group in self.groups.get(domain, ()))

    def nic(self, rank: int) -> int:
        """Rate of a rank's NIC group, 0 without a NIC."""
        group = self.nic_group[rank]
        return self.nic_rate[group] if group >= 0 else 0

    def of_ranks(self, ranks: Iterable[int]) -> int:
        """Rate of the NIC groups of some ranks together."""
        groups = {self.nic_group[rank] for rank in ranks} - {-1}
        return sum(self.nic_rate[group] for group in groups)
