"""What pictures ask of a cluster again and again: domains by host, NICs in use, marks, rails, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reshard_planner.render.cluster.marks import Marks, find_marks
from reshard_planner.render.text import format_rate
from reshard_planner.topology.cluster.facts import Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.resolve import Resolved
from reshard_planner.topology.cluster.speeds import nvlink_facts


@dataclass(frozen=True, slots=True)
class Devices:
    """What is asked of a cluster again and again.

    Attributes:
        cluster: overrides applied.
        ports: what is known of the port of each GPU into its domain, by its number.
        resolved: what planning makes of it.
        domain_of: domain of every GPU.
        hosts_of_domain: indices of the hosts of each domain.
        domains_of_host: domains of each host.
        marks: what is less than its like.
        rails: rail that planning takes of each NIC, by host and name.
        ranks: rank on each GPU, where ranks have a map.
        firsts: number of the first GPU of each host.
    """

    cluster: Cluster
    ports: tuple[PortFacts, ...]
    resolved: Resolved
    domain_of: tuple[int, ...]
    hosts_of_domain: tuple[tuple[int, ...], ...]
    domains_of_host: tuple[frozenset[int], ...]
    marks: Marks
    rails: Mapping[tuple[str, str], int | None]
    ranks: Mapping[int, int]
    firsts: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster, resolved: Resolved) -> Devices:
        domain_of = [0] * cluster.gpu_count
        for index, domain in enumerate(resolved.domains):
            for gpu in domain.gpus:
                domain_of[gpu] = index
        hosts_of_domain: list[dict[int, None]] = [{} for _ in resolved.domains]
        domains_of_host = []
        number = 0
        for at, host in enumerate(cluster.hosts):
            of_host = domain_of[number : number + len(host.gpus)]
            number += len(host.gpus)
            domains_of_host.append(frozenset(of_host))
            for domain_number in of_host:
                hosts_of_domain[domain_number][at] = None
        rails = {name: nic.rail for name, nic in zip(resolved.nics, resolved.topology.nics, strict=True)}
        ranks = {} if cluster.rank_map is None else {gpu: rank for rank, gpu in enumerate(cluster.rank_map)}
        return cls(
            cluster,
            tuple(nvlink_facts(cluster, host, gpu) for host in cluster.hosts for gpu in host.gpus),
            resolved,
            tuple(domain_of),
            tuple(map(tuple, hosts_of_domain)),
            tuple(domains_of_host),
            find_marks(cluster, resolved.uses),
            rails,
            ranks,
            tuple(cluster.first_gpus().values()),
        )

    def assumed(self, domain: int) -> bool:
        """Whether nobody stated what a domain is: nothing is known of the NVLinks of its GPUs."""
        if self.cluster.overrides.domains:
            return False
        return any(
            host.domain is None
            and len(host.gpus) > 1
            and all(gpu.fabric is None and gpu.island is None and gpu.nvlinks is None for gpu in host.gpus)
            for host in (self.cluster.hosts[index] for index in self.hosts_of_domain[domain])
        )

    def domain_title(self, domain: int) -> str:
        """Number of a domain, with the number and speed of its ports."""
        known = self.resolved.domains[domain]
        link = self.resolved.topology.domains[domain].link
        if len(known.gpus) == 1:
            return f"domain {domain}"
        medium = "PCIe" if known.over_pcie else "NVLink"
        rates = {self.ports[gpu].bytes_per_s for gpu in known.gpus}
        least = " at least" if len({rate.value for rate in rates if rate is not None}) > 1 else ""
        rate = f"{medium} {format_rate(link.bytes_per_s)} each{least}{self.origin(domain)}"
        return f"domain {domain}: {len(known.gpus)} GPUs, {rate}"

    def origin(self, domain: int) -> str:
        """Where the speed of a domain comes from, if that is no source."""
        rate = self.resolved.topology.domains[domain].link.bytes_per_s
        for number in self.resolved.domains[domain].gpus:
            fact = self.ports[number].bytes_per_s
            if fact is None or fact.origin is Origin.ASSUMED:
                return " assumed"
            if fact.value == rate:
                return "" if fact.origin is Origin.FILE else f" ({fact.origin})"
        return ""
