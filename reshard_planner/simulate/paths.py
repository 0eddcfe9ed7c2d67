"""Paths: the ports that each message passes, at the rates and latencies that a run sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import MediumError
from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.simulate.workload import Workload
from reshard_planner.topology import Link, Ports, Topology
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_PORTS = 4
"""Most ports that a message passes: a NIC and an uplink out, an uplink and a NIC in."""


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """What the messages of a workload share.

    Attributes:
        names: name of each port, with its direction.
        bytes_per_s: datasheet rate times efficiency of each port; one more than there are names, as the last
            one is no port and infinitely fast, float64 of shape (ports + 1,).
        ports: ports of each message, filled up with the last one, int64 of shape (messages, 4).
        latency_s: largest latency of the ports of each message, float64 of shape (messages,).
    """

    names: tuple[str, ...]
    bytes_per_s: Floats
    ports: Ints
    latency_s: Floats

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, workload: Workload, topology: Topology) -> Paths:
        """The paths of a workload's messages.

        Raises:
            MediumError: if a message over the network comes from or goes to a rank without a NIC.
            TopologyError: if a rank runs on no GPU of the topology.
            UnsupportedError: if GPUs share some of their NICs and not others.
        """
        return RunPorts.of(topology, workload.ranks).paths(workload)


@dataclass(frozen=True, slots=True, eq=False)
class RunPorts:
    """The ports of a cluster as runs see them, for any workload of the same ranks.

    Attributes:
        ports: ports of each rank.
        names: name of each port, with its direction.
        bytes_per_s: as in :class:`Paths`.
        latency_s: latency of each port and of none, in seconds, float64 of shape (ports + 1,).
        first: number of the first port of each kind: NICs, NVLink ports and uplinks, each out and in.
    """

    ports: Ports
    names: tuple[str, ...]
    bytes_per_s: Floats
    latency_s: Floats
    first: tuple[int, ...]

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, topology: Topology, ranks: tuple[int, ...]) -> RunPorts:
        """The ports of some ranks.

        Raises:
            TopologyError: if a rank runs on no GPU of the topology.
            UnsupportedError: if GPUs share some of their NICs and not others.
        """
        ports = Ports.of(topology, ranks)
        names: list[str] = []
        rates: list[Floats] = []
        latencies: list[Floats] = []
        first: list[int] = []
        nvlinks = [topology.domains[domain].link if domain >= 0 else None for domain in ports.domain.tolist()]
        uplinks: list[Link | None] = [pod.uplink for pod in topology.pods]
        for owners, (rate, latency) in (
            (list(ports.nic_name), _groups(topology, ranks, ports)),
            ([f"nvlink of rank {rank}" for rank in range(len(nvlinks))], _links(nvlinks)),
            ([f"uplink of pod {pod}" for pod in range(len(uplinks))], _links(uplinks)),
        ):
            for direction in ("out", "in"):
                first.append(len(names))
                names.extend(f"{owner}, {direction}" for owner in owners)
                rates.append(rate)
                latencies.append(latency)
        bytes_per_s, latency_s = np.concatenate((*rates, [np.inf])), np.concatenate((*latencies, [0.0]))
        return cls(ports, tuple(names), bytes_per_s, latency_s, tuple(first))

    def paths(self, workload: Workload) -> Paths:
        """The paths of a workload's messages.

        Raises:
            MediumError: if a message over the network comes from or goes to a rank without a NIC.
        """
        passed = _passed(workload, self.ports, self.first, len(self.names))
        latency_s = self.latency_s[passed].max(axis=1, initial=0.0)
        return Paths(self.names, self.bytes_per_s, passed, latency_s)


def _links(links: list[Link | None]) -> tuple[Floats, Floats]:
    """Rate with efficiency and latency of each link; 0 where there is none."""
    rates = [link.bytes_per_s * link.efficiency if link else 0.0 for link in links]
    latencies = [link.latency_s if link else 0.0 for link in links]
    return np.array(rates, dtype=np.float64), np.array(latencies, dtype=np.float64)


def _groups(topology: Topology, ranks: tuple[int, ...], ports: Ports) -> tuple[Floats, Floats]:
    """Sum of the rates with efficiency and largest latency of the NICs of each NIC group that a rank has."""
    group_of = {topology.gpu_of(rank): int(ports.nic_group[rank]) for rank in ranks}
    rate = np.zeros(len(ports.nic_name))
    latency = np.zeros(len(ports.nic_name))
    for nic in topology.nics:
        # all NICs of a group serve the same GPUs
        group = next((group_of[gpu] for gpu in nic.gpus if gpu in group_of), None)
        if group is not None:
            rate[group] += nic.link.bytes_per_s * nic.link.efficiency
            latency[group] = max(latency[group], nic.link.latency_s)
    return rate, latency


def _passed(workload: Workload, ports: Ports, first: tuple[int, ...], none: int) -> Ints:
    """Ports of each message."""
    messages = workload.messages
    network = messages.medium == Medium.NETWORK
    passed = np.full((len(messages), MAX_PORTS), none, dtype=np.int64)
    nic_out, nic_in, nvlink_out, nvlink_in, uplink_out, uplink_in = first
    pods = ports.pod[messages.src], ports.pod[messages.dst]
    for at, ranks, nic, nvlink in (
        (0, messages.src, nic_out, nvlink_out),
        (1, messages.dst, nic_in, nvlink_in),
    ):
        group = ports.nic_group[ranks]
        missing = np.flatnonzero(network & (group < 0))
        if len(missing):
            raise MediumError(
                f"a message goes over the network at rank {ranks[missing[0]]}, which has no NIC"
            )
        passed[:, at] = np.where(network, nic + group, nvlink + ranks)
    for at, pod, uplink in ((2, pods[0], uplink_out), (3, pods[1], uplink_in)):
        crosses = network & (pods[0] != pods[1]) & (pod >= 0)
        passed[crosses, at] = uplink + pod[crosses]
    return passed
