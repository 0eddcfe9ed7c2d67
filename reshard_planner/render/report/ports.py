"""What every port of a plan carries in all, the busiest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
