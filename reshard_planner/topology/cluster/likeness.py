"""Devices that are less than their like: GPUs with fewer NVLinks, NICs that are slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from reshard_planner.topology.cluster.facts import Fact, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.cluster.nics import NicUse, used_nics
from reshard_planner.topology.model import NIC_LINK

SLOWER = 0.98
"""NICs below this share of the rate of their like are slow; smaller differences are rounding."""

MEASURED_SLOWER = 0.9
"""The same where a rate or an efficiency was measured: probes of equal ports differ by some percent."""


@dataclass(frozen=True, slots=True)
class SlowNic:
    """A NIC in use that is slower than most.

    Attributes:
        host: name of its host.
        nic: its name.
        bytes_per_s: its rate, times its efficiency where that of any NIC is known.
        usual_bytes_per_s: what half of all NICs in use reach at least, likewise.
    """

    host: str
    nic: str
    bytes_per_s: float
    usual_bytes_per_s: float


def find_slow_nics(cluster: Cluster, uses: Sequence[Sequence[NicUse]]) -> list[SlowNic]:
    """NICs in use that are slower than most, among those whose rate is known.

    Where the efficiency of some is known, that of the others is taken as planning takes it.

    Args:
        cluster: overrides applied.
        uses: who uses which NICs, by host.
    """
    ports = [(host.name, nic.name, port) for host, nic, port in used_nics(cluster, uses)]
    known = any(port.bytes_per_s is not None and port.efficiency is not None for _, _, port in ports)
    efficiency = NIC_LINK.efficiency if known else 1.0
    rated = [
        (host, nic, rate.value * (efficiency if port.efficiency is None else port.efficiency.value), port)
        for host, nic, port in ports
        if (rate := port.bytes_per_s) is not None
    ]
    if not rated:
        return []
    usual = median_high([rate for _, _, rate, _ in rated])
    by_measuring = any(_is_measured(port) for _, _, rate, port in rated if rate == usual)
    return [
        SlowNic(host, nic, rate, usual)
        for host, nic, rate, port in rated
        if rate < usual * (MEASURED_SLOWER if by_measuring or _is_measured(port) else SLOWER)
    ]


def _is_measured(port: PortFacts) -> bool:
    facts: tuple[Fact[int] | Fact[float] | None, ...] = (port.bytes_per_s, port.efficiency)
    return any(fact is not None and fact.origin is Origin.MEASURED for fact in facts)


def find_few_links(host: Host) -> dict[int, tuple[int, int]]:
    """GPUs with fewer NVLinks than others of their host, by position: how many, and how many those have."""
    links = {position: gpu.nvlinks.value for position, gpu in enumerate(host.gpus) if gpu.nvlinks is not None}
    most = max(links.values(), default=0)
    return {position: (count, most) for position, count in links.items() if count < most}
