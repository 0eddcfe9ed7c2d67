"""How long ports take for the bytes that operations move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.stream import Block
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class PortTimes:
    """How long ports take for what numbered ranks carry in each of some slots, at their datasheet rates.

    Args:
        ranks: the rank of each number.
        ports: capacities; ranks beyond them have no ports.
    """

    def __init__(self, ranks: Ints, ports: Ports) -> None:
        known = ranks[ranks < len(ports.domain)]
        groups = ports.nic_group[known]
        order = np.argsort(groups, kind="stable")
        order = order[groups[order] >= 0]
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        self.nic_ranks = order
        self.nic_starts = None if len(starts) == len(order) else starts
        self.nic_rates = ports.nic_bytes_per_s[groups[order][starts]]
        self.nvlink_rates = np.zeros(len(ranks))
        self.nvlink_rates[: len(known)] = ports.nvlink_bytes_per_s[known]
        self.nvlink_rates[self.nvlink_rates <= 0] = np.inf
        self.uplink_rates = ports.uplink_bytes_per_s
        self.pod: Ints = np.full(len(ranks), -1, dtype=np.int64)
        self.pod[: len(known)] = ports.pod[known]

    def cross(self, block: Block, src: Ints, dst: Ints, network: NDArray[np.bool_]) -> Ints:
        """Bytes out of and into every pod in each slot of a block, int64 of shape (2, slots, pods).

        Args:
            block: the operations.
            src: number of the rank that sends, of each.
            dst: likewise, that receives.
            network: whether each goes over the network.
        """
        loads = np.zeros((2, len(block.slots), len(self.uplink_rates)), dtype=np.int64)
        if len(self.uplink_rates):
            ends = (self.pod[src], self.pod[dst])
            crosses = (ends[0] != ends[1]) & network
            for load, pod in zip(loads, ends, strict=True):
                at = np.flatnonzero(crosses & (pod >= 0))
                np.add.at(load, (block.slot[at], pod[at]), block.nbytes[at])
        return loads

    def busiest_s(self, network: Ints, nvlink: Ints, uplink: Ints) -> Floats:
        """Time of the busiest port in each slot, in seconds, shape (slots,).

        Args:
            network: bytes out and in over the network, int64 of shape (2, slots, ranks).
            nvlink: likewise, over NVLink.
            uplink: what :meth:`cross` gives.
        """
        network = network[:, :, self.nic_ranks]
        if self.nic_starts is not None and len(self.nic_starts):
            network = np.add.reduceat(network, self.nic_starts, axis=2)
        longest: Floats = np.zeros(network.shape[1])
        for load, rates in (
            (network, self.nic_rates),
            (nvlink, self.nvlink_rates),
            (uplink, self.uplink_rates),
        ):
            np.maximum(longest, (load / rates).max(axis=(0, 2), initial=0.0), out=longest)
        return longest
