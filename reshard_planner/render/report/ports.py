"""What every port of a plan carries in all, the busiest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reshard_planner.ir.certificate import BoundClaim
from reshard_planner.ir.plan import Plan
from reshard_planner.render.report.loads import LANES, Loads, sum_by_nic


@dataclass(frozen=True, slots=True)
class PortLoad:
    """One port in one direction.

    Attributes:
        kind: what it is: one of the lanes, or an uplink.
        name: of the port.
        ranks: ranks that use it, ascending.
        nbytes: bytes over it.
        bytes_per_s: its datasheet rate.
    """

    kind: str
    name: str
    ranks: tuple[int, ...]
    nbytes: int
    bytes_per_s: int

    @property
    def time_s(self) -> float:
        """Time for its bytes at its rate; 0 for a port without a rate, which no right plan uses."""
        return self.nbytes / self.bytes_per_s if self.bytes_per_s else 0.0


def port_loads(loads: Loads) -> list[PortLoad]:
    """All ports that carry anything, those that take longest first."""
    ports, carried = loads.ports, loads.lanes.sum(axis=2)
    nics = sum_by_nic(carried[:2], loads.ranks, ports)
    by_group: dict[int, list[int]] = {}
    by_pod: dict[int, list[int]] = {}
    for rank in loads.ranks.tolist():
        by_group.setdefault(int(ports.nic_group[rank]), []).append(rank)
        by_pod.setdefault(int(ports.pod[rank]), []).append(rank)
    found: list[PortLoad] = []
    for lane, way in enumerate(("out", "in")):
        for group in np.flatnonzero(nics[lane]).tolist():
            name, rate = f"{ports.nic_name[group]}, {way}", int(ports.nic_bytes_per_s[group])
            found.append(PortLoad(LANES[lane], name, tuple(by_group[group]), int(nics[lane, group]), rate))
        for at in np.flatnonzero(carried[2 + lane]).tolist():
            rank = int(loads.ranks[at])
            name, rate = f"nvlink of rank {rank}, {way}", int(ports.nvlink_bytes_per_s[rank])
            found.append(PortLoad(LANES[2 + lane], name, (rank,), int(carried[2 + lane, at]), rate))
        for pod in np.flatnonzero(loads.uplink[lane]).tolist():
            name, rate = f"uplink of pod {pod}, {way}", int(ports.uplink_bytes_per_s[pod])
            nbytes = int(loads.uplink[lane, pod])
            found.append(PortLoad(f"uplink, {way}", name, tuple(by_pod[pod]), nbytes, rate))
    return sorted(found, key=lambda port: -port.time_s)


WAYS = {
    "domain_ingress": "NIC, in",
    "egress": "NIC, out",
    "pod_ingress": "NIC, in",
    "pod_egress": "NIC, out",
    "port_in": "NIC, in",
    "nvlink_port_in": "NVLink, in",
    "nvlink_port_out": "NVLink, out",
    "nvlink_domain": "NVLink, in",
}
"""Lane of the ports of a cut, by its term."""


def binding_lane(bound: BoundClaim) -> str | None:
    """The lane that the cut of a bound is about; None where nothing binds.

    Of prices it is that of the resource of most weight.
    """
    if not bound.cut_nbytes:
        return None
    if bound.term in WAYS or not bound.cut_weights:
        return WAYS.get(bound.term)
    resource, _, _ = max(bound.cut_weights, key=lambda price: price[2])
    port, _, way = resource.partition("_")
    return f"{'NVLink' if port == 'nvlink' else 'NIC'}, {way}"


def alike_domains(plan: Plan, loads: Loads) -> tuple[int, ...]:
    """Domains that bind as much as the one of the bound's cut: as many bytes must enter them, as fast.

    What enters a domain is known to have to only in plans of least payload, so that there are none of others.
    """
    bound, payload = plan.certificate.bound, plan.certificate.payload
    if bound.term != "domain_ingress" or payload.network_nbytes != payload.minimum_network_nbytes:
        return ()
    ports, domains = loads.ports, loads.ports.domain[loads.ranks]
    entered = np.bincount(domains, loads.lanes[1].sum(axis=1)).astype(np.int64)
    rates = {}
    for domain in np.flatnonzero(entered).tolist():
        groups = np.unique(ports.nic_group[loads.ranks[domains == domain]])
        rates[domain] = int(ports.nic_bytes_per_s[groups[groups >= 0]].sum())
    binding = (bound.cut_nbytes, bound.cut_bytes_per_s)
    alike = [domain for domain, rate in rates.items() if (int(entered[domain]), rate) == binding]
    [mine] = bound.cut_members
    return tuple(domain for domain in alike if domain != mine) if mine in alike else ()
