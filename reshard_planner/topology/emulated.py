"""A topology as one machine can emulate it: the same GPUs and ports, at rates that a processor can move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from reshard_planner.errors import UnsupportedError
from reshard_planner.topology.model import Link, Topology

EMULATED_EFFICIENCY = 0.985
"""Share of an emulated port's rate that large messages reach."""

EMULATED_LATENCY_S = 1e-3
"""Start-up time of one message between emulated ranks, in seconds."""


def emulated_topology(
    topology: Topology, ranks: Iterable[int], nic_bytes_per_s: int, nvlink_bytes_per_s: int
) -> Topology:
    """The topology with rates scaled down (or up) to those of an emulated cluster.

    The fastest NIC capacity of a used GPU becomes ``nic_bytes_per_s`` and the fastest NVLink port of one
    ``nvlink_bytes_per_s``; all others keep their ratio to it. Efficiency and latency are those of emulated
    ports.

    Args:
        topology: what to scale.
        ranks: the ranks that are used.
        nic_bytes_per_s: new rate per direction of the fastest GPU's NICs together.
        nvlink_bytes_per_s: new rate per direction of the fastest NVLink port.

    Raises:
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if used GPUs share NICs, or there are pods.
    """
    used = {topology.gpu_of(rank) for rank in ranks}
    if topology.pods:
        raise UnsupportedError("the topology has pods, whose uplinks cannot be emulated; expected none")
    for number, nic in enumerate(topology.nics):
        if len(set(nic.gpus)) > 1 and used.intersection(nic.gpus):
            raise UnsupportedError(
                f"NIC {number} is shared by GPUs {sorted(set(nic.gpus))}, which cannot be emulated;"
                " expected NICs of one GPU each"
            )
    fastest_nic = fastest_nic_bytes_per_s(topology, used)
    fastest_link = max(
        (domain.link.bytes_per_s for domain in topology.domains if used.intersection(domain.gpus)), default=1
    )
    nics = tuple(replace(nic, link=_scaled(nic.link, nic_bytes_per_s, fastest_nic)) for nic in topology.nics)
    domains = tuple(
        replace(domain, link=_scaled(domain.link, nvlink_bytes_per_s, fastest_link))
        for domain in topology.domains
    )
    return replace(topology, domains=domains, nics=nics, name="emulated")


def fastest_nic_bytes_per_s(topology: Topology, gpus: Iterable[int]) -> int:
    """Rate per direction of the NICs of the GPU that has most; 1 if none has any."""
    wanted, rates = set(gpus), Counter[int]()
    for nic in topology.nics:
        rates.update(dict.fromkeys(wanted.intersection(nic.gpus), nic.link.bytes_per_s))
    return max(rates.values(), default=1)


def emulated_min_message(
    topology: Topology, ranks: Iterable[int], nic_bytes_per_s: int, min_message_nbytes: int
) -> int:
    """The least size of messages that takes as many start-up times on emulated NICs as it did before.

    Args:
        topology: the one before it was scaled.
        ranks: the ranks that are used.
        nic_bytes_per_s: new rate of the fastest NIC.
        min_message_nbytes: least size before.
    """
    used = {topology.gpu_of(rank) for rank in ranks}
    links = [nic.link for nic in topology.nics if used.intersection(nic.gpus)]
    before = fastest_nic_bytes_per_s(topology, used) * max((link.latency_s for link in links), default=0.0)
    if not before:
        return min_message_nbytes
    return max(1, round(min_message_nbytes * (nic_bytes_per_s * EMULATED_LATENCY_S) / before))


def _scaled(link: Link, new: int, old: int) -> Link:
    """A link whose rate is to its old one as ``new`` to ``old``."""
    bytes_per_s = max(1, (link.bytes_per_s * new + old // 2) // old)
    return Link(bytes_per_s, EMULATED_EFFICIENCY, EMULATED_LATENCY_S)
