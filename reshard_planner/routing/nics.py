"""NICs as ports of ranks, those of ranks without one included."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reshard_planner.demand import Demand
from reshard_planner.routing.forest import Forest
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Floats = NDArray[np.float64]


class NicPorts:
    """A port for every NIC group, then one for every rank, used by ranks without NIC.

    Attributes:
        of_rank: port of each rank, int64 indexed by rank.
        bytes_per_s: rate of each port; 0 for those of ranks without NIC.
        lent_bytes_per_s: the same, but in domains that have a rank without NIC, every rank's equal share of
            all the domain's NICs.
    """

    def __init__(self, ports: Ports) -> None:
        groups, size = len(ports.nic_bytes_per_s), len(ports.domain)
        without = ports.nic_group < 0
        self.of_rank: NDArray[np.int64] = np.where(without, groups + np.arange(size), ports.nic_group)
        self.bytes_per_s = np.concatenate((ports.nic_bytes_per_s, np.zeros(size, dtype=np.int64)))
        domains = int(max(ports.domain.max(initial=-1), ports.nic_domain.max(initial=-1))) + 1
        known = ports.domain >= 0
        used = np.unique(ports.nic_group[~without])
        rates = np.bincount(ports.nic_domain[used], weights=ports.nic_bytes_per_s[used], minlength=domains)
        members = np.bincount(ports.domain[known], minlength=domains)
        lacks = np.bincount(ports.domain[known & without], minlength=domains) > 0
        share = np.append(np.maximum(1.0, rates / np.maximum(1, members)), 1.0)  # the last one for no domain
        sharers = np.bincount(ports.nic_group[~without], minlength=groups)
        own = ports.nic_bytes_per_s.astype(np.float64)
        lending = np.flatnonzero((sharers > 0) & lacks[ports.nic_domain])
        own[lending] = share[ports.nic_domain[lending]] * sharers[lending]
        self.lent_bytes_per_s = np.concatenate((own, share[ports.domain]))

    def loads(self, forest: Forest, bits: int, *, sending: bool) -> Floats:
        """Bytes that a forest's tensors move over each port in one direction, float64 of shape (ports,)."""
        network = np.flatnonzero(forest.medium == Medium.NETWORK)
        ranks = (forest.src if sending else forest.dst)[network]
        nbytes = forest.nbytes(bits)[network]
        loads = np.zeros(len(self.bytes_per_s))
        for member in forest.members:
            loads += np.bincount(
                self.of_rank[member.rename(ranks)],
                weights=nbytes * len(member.tensors),
                minlength=len(loads),
            )
        return loads


def must_borrow(demands: Iterable[Demand], ports: Ports) -> bool:
    """Whether some bytes must cross the network and nobody who holds, or needs, them has a NIC."""
    nic_group, domain_of = ports.nic_group.tolist(), ports.domain.tolist()
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for demand in demands:
        if not demand.needing_domains:
            continue
        if all(nic_group[rank] < 0 for rank in demand.holders):
            return True
        key = (demand.needers, demand.needing_domains)  # equal needers may be in need in different domains
        if key not in seen:
            served = {domain_of[rank] for rank in demand.needers if nic_group[rank] >= 0}
            if not served.issuperset(demand.needing_domains):
                return True
            seen.add(key)
    return False
