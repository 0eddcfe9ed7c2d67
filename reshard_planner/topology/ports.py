"""Ports: the capacities of a topology as columns, per rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import TopologyError, UnsupportedError
from reshard_planner.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Ports:
    """Domain, NIC capacity and NVLink capacity of every rank, indexed by rank number.

    GPUs that share NICs, directly or through one another, form one *NIC group*: a capacity of the sum
    of its NICs' rates, loaded by the sum of its GPUs' bytes.

    Attributes:
        domain: index of the rank's domain, -1 where no rank is, int64 of shape (max rank + 1,).
        nic_group: index of the rank's NIC group, -1 for a GPU without NIC, same shape.
        nic_bytes_per_s: rate of each NIC group per direction, int64 of shape (groups,).
        nic_name: display name of each NIC group.
        nic_domain: domain of each NIC group, int64 of shape (groups,).
        nvlink_bytes_per_s: rate of the rank's NVLink port per direction, int64, indexed by rank.
        pod: index of the pod that the rank's domain is in, -1 for none, int64, indexed by rank.
        uplink_bytes_per_s: rate of each pod's uplink per direction, int64 of shape (pods,).
        rails: number of the set of rails that the rank's NICs are on, -1 where that of one is unknown or
            there is no NIC, int64, indexed by rank.
    """

    domain: NDArray[np.int64]
    nic_group: NDArray[np.int64]
    nic_bytes_per_s: NDArray[np.int64]
    nic_name: tuple[str, ...]
    nic_domain: NDArray[np.int64]
    nvlink_bytes_per_s: NDArray[np.int64]
    pod: NDArray[np.int64]
    uplink_bytes_per_s: NDArray[np.int64]
    rails: NDArray[np.int64]

    def __post_init__(self) -> None:
        for column in (
            self.domain,
            self.nic_group,
            self.nic_bytes_per_s,
            self.nic_domain,
            self.nvlink_bytes_per_s,
            self.pod,
            self.uplink_bytes_per_s,
            self.rails,
        ):
            column.setflags(write=False)

    @classmethod
    def of(cls, topology: Topology, ranks: Iterable[int]) -> Ports:
        """Look up the given ranks.

        Raises:
            TopologyError: if a rank runs on no GPU of the topology.
            UnsupportedError: if GPUs share some of their NICs and not others.
        """
        home = {gpu: index for index, domain in enumerate(topology.domains) for gpu in domain.gpus}
        group_of, rates, names = _nic_groups(topology)
        chosen = sorted(set(ranks))
        size = chosen[-1] + 1 if chosen else 0
        domain = np.full(size, -1, dtype=np.int64)
        nic_group = np.full(size, -1, dtype=np.int64)
        nvlink = np.zeros(size, dtype=np.int64)
        pod = np.full(size, -1, dtype=np.int64)
        rails_of_gpu = _rails(topology)
        rails = np.full(size, -1, dtype=np.int64)
        pod_of = {domain: index for index, each in enumerate(topology.pods) for domain in each.domains}
        for rank in chosen:
            gpu = topology.gpu_of(rank)
            if gpu not in home:
                raise TopologyError(
                    f"rank {rank} has no GPU in the topology, which has {topology.gpu_count} GPUs"
                    f" in {len(topology.domains)} domains"
                )
            domain[rank] = home[gpu]
            nic_group[rank] = group_of.get(gpu, -1)
            nvlink[rank] = topology.domains[home[gpu]].link.bytes_per_s
            pod[rank] = pod_of.get(home[gpu], -1)
            rails[rank] = rails_of_gpu.get(gpu, -1)
        nic_domain = np.full(len(rates), -1, dtype=np.int64)
        for gpu, group in group_of.items():
            nic_domain[group] = home[gpu]
        uplinks = np.array([each.uplink.bytes_per_s for each in topology.pods], dtype=np.int64)
        rate = np.array(rates, dtype=np.int64)
        return cls(domain, nic_group, rate, tuple(names), nic_domain, nvlink, pod, uplinks, rails)


def _rails(topology: Topology) -> dict[int, int]:
    """Number of the set of rails of the NICs of each GPU that has some, all known."""
    of_gpu: dict[int, set[int | None]] = {}
    for nic in topology.nics:
        for gpu in nic.gpus:
            of_gpu.setdefault(gpu, set()).add(nic.rail)
    numbers: dict[frozenset[int | None], int] = {}
    return {
        gpu: numbers.setdefault(frozenset(rails), len(numbers))
        for gpu, rails in of_gpu.items()
        if None not in rails
    }


def _nic_groups(topology: Topology) -> tuple[dict[int, int], list[int], list[str]]:
    """Connected components of GPUs and NICs: group per GPU, rate and name per group."""
    parent: dict[int, int] = {}

    def find(gpu: int) -> int:
        root = gpu
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[gpu] != root:
            parent[gpu], gpu = root, parent[gpu]
        return root

    for nic in topology.nics:
        first = find(nic.gpus[0])
        for gpu in nic.gpus[1:]:
            parent[find(gpu)] = first
    group_of_root: dict[int, int] = {}
    rates: list[int] = []
    members: list[set[int]] = []
    for nic in topology.nics:
        group = group_of_root.setdefault(find(nic.gpus[0]), len(rates))
        if group == len(rates):
            rates.append(0)
            members.append(set())
        rates[group] += nic.link.bytes_per_s
        members[group].update(nic.gpus)
    group_of = {gpu: group_of_root[find(gpu)] for gpu in parent}
    for index, nic in enumerate(topology.nics):
        outside = members[group_of[nic.gpus[0]]].difference(nic.gpus)
        if outside:
            raise UnsupportedError(
                f"NIC {index} serves GPUs {sorted(set(nic.gpus))} but not GPU {min(outside)}, which shares"
                " another NIC with them; GPUs that share only some of their NICs are not implemented yet"
            )
    names = ["nic of gpu " + ",".join(map(str, sorted(gpus))) for gpus in members]
    return group_of, rates, names
