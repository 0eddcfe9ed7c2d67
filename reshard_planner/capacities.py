"""Capacities: the rates of the ports that the ranks of one reshard have."""

from __future__ import annotations

from collections.abc import Iterable

from reshard_planner.topology import Ports


class Capacities:
    """Rates of the NIC groups, NVLink ports and uplinks that the ranks of a reshard have.

    Attributes:
        domain_of: domain of each rank, -1 where no rank is.
        nvlink: rate of each rank's NVLink port, in bytes per second and direction.
        nic_group: NIC group of each rank, -1 without a NIC.
        nic_rate: rate of each NIC group, in bytes per second and direction.
        groups: per domain, its NIC groups.
        ranks: per domain, its ranks in ascending order.
        pod_of: per domain that is in a pod, the pod.
        uplink: rate of each pod's uplink, in bytes per second and direction.
    """

    def __init__(self, ports: Ports, ranks: Iterable[int]) -> None:
        self.domain_of: list[int] = ports.domain.tolist()
        self.nvlink: list[int] = ports.nvlink_bytes_per_s.tolist()
        self.nic_group: list[int] = ports.nic_group.tolist()
        self.nic_rate: list[int] = ports.nic_bytes_per_s.tolist()
        self.groups: dict[int, set[int]] = {}
        self.ranks: dict[int, list[int]] = {}
        self.pod_of: dict[int, int] = {}
        self.uplink: list[int] = ports.uplink_bytes_per_s.tolist()
        pod_of_rank: list[int] = ports.pod.tolist()
        for rank in sorted(set(ranks)):
            domain = self.domain_of[rank]
            self.ranks.setdefault(domain, []).append(rank)
            self.groups.setdefault(domain, set())
            if pod_of_rank[rank] >= 0:
                self.pod_of[domain] = pod_of_rank[rank]
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
