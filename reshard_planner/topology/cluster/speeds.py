"""Speeds of ports from what is known of them: overrides, facts, the GPU's model, and defaults at last."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from reshard_planner.topology.cluster.facts import Fact, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic
from reshard_planner.topology.model import NVLINK_LINK, Link

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """One NVLink of a generation of GPUs, per direction.

    Attributes:
        bytes_per_s: datasheet rate.
        reached_bytes_per_s: what NCCL counts with, constants SM*_NVLINK_BW of its src/graph/topo.h.
        links: number of links of an undamaged GPU.
    """

    bytes_per_s: int
    reached_bytes_per_s: int
    links: int


_VOLTA = LinkSpeed(25 * GB, 20_000_000_000, 6)
_AMPERE = LinkSpeed(25 * GB, 20_000_000_000, 12)
_HOPPER = LinkSpeed(25 * GB, 20_600_000_000, 18)
_BLACKWELL = LinkSpeed(50 * GB, 40_100_000_000, 18)

_MODELS = (
    # datasheets: V100 300 GB/s over 6 links both ways, A100 600 over 12, H100 and H200 900 over 18,
    # B200, GB200 and their successors of 2025 1800 over 18
    (re.compile(r"\bsm_?10[03]\b|\bG?B[23]00\b", re.IGNORECASE), _BLACKWELL),
    (re.compile(r"\bsm_?90\b|\bG?H[12]00\b|\bH800\b|\bH20\b", re.IGNORECASE), _HOPPER),
    (re.compile(r"\bsm_?80\b|\bA100\b|\bA800\b", re.IGNORECASE), _AMPERE),
    (re.compile(r"\bsm_?70\b|\bV100\b", re.IGNORECASE), _VOLTA),
)

PCIE_LINK = replace(NVLINK_LINK, bytes_per_s=32 * GB)
"""Port of GPUs that reach each other over PCIe: the rate of x16 of generation 4; assumed where nothing better
is known."""


def find_link_speed(model: str) -> LinkSpeed | None:
    """The NVLinks of a GPU by its model; None where the model is not known.

    >>> find_link_speed("NVIDIA H100 80GB HBM3").bytes_per_s
    25000000000
    """
    return next((speed for pattern, speed in _MODELS if pattern.search(model)), None)


def nvlink_facts(cluster: Cluster, host: Host, gpu: Gpu) -> PortFacts:
    """What is known of the port of a GPU of a host into its domain."""
    known = host.overrides.nvlink.over(cluster.overrides.nvlink).over(gpu.nvlink)
    return known.over(_from_model(model_of(cluster, host, gpu), gpu)).over(host.nvlink).over(cluster.nvlink)


def nic_facts(cluster: Cluster, host: Host, nic: HostNic) -> PortFacts:
    """What is known of the port of a NIC of a host."""
    known = host.overrides.nic.over(cluster.overrides.nic).over(nic.port)
    return known.over(host.nic).over(cluster.nic)


def to_link(port: PortFacts, default: Link) -> Link:
    """The link of a port, with values of ``default`` for those that are unknown."""
    return Link(
        default.bytes_per_s if port.bytes_per_s is None else port.bytes_per_s.value,
        default.efficiency if port.efficiency is None else port.efficiency.value,
        default.latency_s if port.latency_s is None else port.latency_s.value,
    )


def model_of(cluster: Cluster, host: Host, gpu: Gpu) -> str:
    """The model of a GPU of a host, overrides first; "" where it is unknown."""
    stated = host.overrides.gpu_model or cluster.overrides.gpu_model
    return stated or (gpu.model.value if gpu.model is not None else "")


def _from_model(model: str, gpu: Gpu) -> PortFacts:
    """What follows from a GPU's model: the links that it has times the datasheet rate of one."""
    speed = find_link_speed(model)
    if speed is None:
        return PortFacts()
    links = speed.links if gpu.nvlinks is None else gpu.nvlinks.value
    if not links:
        return PortFacts()
    return PortFacts(Fact(links * speed.bytes_per_s, Origin.PRESET, f"{links} NVLinks of {model}"))
