"""What ports must pass, summed once from the demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand

Ints = NDArray[np.int64]

Domains = tuple[int, ...]

EXACT = 2**62
"""Sums below this are taken in 64 bits, others in Python's own integers."""


@dataclass(frozen=True, slots=True)
class JointClass:
    """All classes of all tensors with equal holders and equal needers.

    Attributes:
        nbytes: bytes of all of them together.
        holders: ranks that have the bytes, ascending.
        needers: ranks that must have them, ascending.
        holder_domains: domains of the holders, ascending.
        needing_domains: domains with a needer and no holder, ascending.
    """

    nbytes: int
    holders: Ranks
    needers: Ranks
    holder_domains: Domains
    needing_domains: Domains


class Needs:
    """Bytes that ports must pass, and the joint classes as columns.

    Attributes:
        rank_sets: the distinct sets of holders and of needers.
        domain_sets: the distinct sets of holding domains and of domains in need.
        nbytes: bytes of each joint class, int64, or Python integers where sums might not fit.
        holders: number of the holders' rank set, int64 per joint class.
        needers: likewise of the needers'.
        holding: number of the holding domains' set, int64 per joint class.
        needing: likewise of the domains in need.
        copies: domains in need, int64 per joint class.
        near: whether a holding domain has a needer too, bool per joint class.
        crossing: bytes by holding domains and domains in need, of what some domain must take in.
        ingress: per domain, bytes that must come in over the network.
        missing: per rank, bytes that it needs and does not hold.
        nearby: per rank, those of them that its domain holds; a plan of least payload moves them over NVLink.
        sole: per rank, bytes that a neighbour needs and no other rank of the domain holds.
        lent: per rank, its even share of the bytes that its domain holds and a neighbour lacks.
        pods: bytes by holding pods and pods in need, of what some pod must take in; -1 stands for no pod.
        pod_ingress: per pod, bytes that must come in over its uplink.
    """

    def __init__(self, demands: Sequence[Demand], capacities: Capacities) -> None:
        self._domain_of = capacities.domain_of
        self._by_domain: dict[Ranks, dict[int, Ranks]] = {}
        self._join(demands)
        crossing = self.sums(self.copies > 0, self.holding, self.needing)
        self.crossing = {
            (self.domain_sets[holding], self.domain_sets[needing]): nbytes
            for (holding, needing), nbytes in crossing.items()
        }
        self.ingress: dict[int, int] = {}
        for (_, needing), nbytes in self.crossing.items():
            for domain in needing:
                self.ingress[domain] = self.ingress.get(domain, 0) + nbytes
        self._add_ranks()
        self._add_pods(capacities)

    def by_domain(self, ranks: Ranks) -> dict[int, Ranks]:
        """The ranks of each domain, domains and ranks ascending."""
        found = self._by_domain.get(ranks)
        if found is None:
            lists: dict[int, list[int]] = {}
            for rank in ranks:
                lists.setdefault(self._domain_of[rank], []).append(rank)
            found = {domain: tuple(lists[domain]) for domain in sorted(lists)}
            self._by_domain[ranks] = found
        return found

    def sums(
        self, at: NDArray[np.bool_], first: Ints, second: Ints, weight: Ints | None = None
    ) -> dict[tuple[int, int], int]:
        """Bytes, times a weight, of some joint classes, by the pair of two of their columns."""
        rows = np.flatnonzero(at)
        if not len(rows):
            return {}
        size = int(second.max()) + 1
        keys, inverse = np.unique(first[rows] * size + second[rows], return_inverse=True)
        totals = np.zeros(len(keys), dtype=self.nbytes.dtype)
        nbytes = self.nbytes[rows] if weight is None else self.nbytes[rows] * weight[rows]
        np.add.at(totals, inverse.reshape(-1), nbytes)
        return {divmod(key, size): int(total) for key, total in zip(keys.tolist(), totals, strict=True)}

    def joint(self, rows: Ints) -> Iterator[JointClass]:
        """Some joint classes as values."""
        columns = (self.nbytes, self.holders, self.needers, self.holding, self.needing)
        ranks, domains = self.rank_sets, self.domain_sets
        for nbytes, holders, needers, holding, needing in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            yield JointClass(nbytes, ranks[holders], ranks[needers], domains[holding], domains[needing])

    @cached_property
    def classes(self) -> tuple[JointClass, ...]:
        """All joint classes as values; for small instances."""
        return tuple(self.joint(np.arange(len(self.nbytes))))

    @cached_property
    def near_classes(self) -> tuple[JointClass, ...]:
        """Joint classes of which a holding domain has a needer too."""
        return tuple(self.joint(np.flatnonzero(self.near)))

    def _join(self, demands: Sequence[Demand]) -> None:
        ranks, domains = _Numbers(), _Numbers()
        columns = np.array(
            [
                (
                    ranks.of(demand.holders),
                    ranks.of(demand.needers),
                    domains.of(demand.holder_domains),
                    domains.of(demand.needing_domains),
                )
                for demand in demands
            ],
            dtype=np.int64,
        ).reshape(-1, 4)
        self.rank_sets, self.domain_sets = ranks.values(), domains.values()
        sizes = np.array([len(domains) for domains in self.domain_sets], dtype=np.int64)
        key = columns[:, 0] * len(self.rank_sets) + columns[:, 1]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        each = [demand.nbytes for demand in demands]
        most = sum(each) * int(sizes.max(initial=1) + 1)
        self.nbytes: NDArray[np.int64] = np.zeros(len(first), dtype=np.int64 if most < EXACT else object)
        np.add.at(self.nbytes, inverse.reshape(-1), np.array(each, dtype=self.nbytes.dtype))
        self.holders, self.needers, self.holding, self.needing = (column[first] for column in columns.T)
        self.copies = sizes[self.needing] if len(first) else first
        spans = np.array([len(self.by_domain(ranks)) for ranks in self.rank_sets], dtype=np.int64)
        self.near = spans[self.needers] > self.copies if len(first) else np.zeros(0, dtype=np.bool_)

    def _add_ranks(self) -> None:
        size = len(self._domain_of)
        missing, nearby, sole = (np.zeros(size, dtype=self.nbytes.dtype) for _ in range(3))
        lent = np.zeros(size)
        for joint in self.near_classes:
            holders = self.by_domain(joint.holders)
            for domain, members in self.by_domain(joint.needers).items():
                held = holders.get(domain, ())
                lacking = [rank for rank in members if rank not in held]
                if not lacking:
                    continue
                missing[lacking] += joint.nbytes
                if held:
                    nearby[lacking] += joint.nbytes
                    lent[list(held)] += joint.nbytes / len(held)
                    if len(held) == 1:
                        sole[held[0]] += joint.nbytes
        for (needers, _), nbytes in self.sums(~self.near, self.needers, np.zeros_like(self.needers)).items():
            missing[list(self.rank_sets[needers])] += nbytes
        self.missing, self.nearby, self.sole = (
            {rank: int(column[rank]) for rank in np.flatnonzero(column).tolist()}
            for column in (missing, nearby, sole)
        )
        self.lent = {rank: float(lent[rank]) for rank in np.flatnonzero(lent).tolist()}

    def _add_pods(self, capacities: Capacities) -> None:
        self.pods: dict[tuple[Domains, Domains], int] = {}
        self.pod_ingress: dict[int, int] = {}
        if not capacities.uplink:
            return
        pod_of = capacities.pod_of
        for (holding, needing), nbytes in self.crossing.items():
            have = tuple(sorted({pod_of.get(domain, -1) for domain in holding}))
            outside = Counter(pod_of.get(domain, -1) for domain in needing)
            need = tuple(sorted(pod for pod in outside if pod < 0 or pod not in have))
            if need:
                self.pods[have, need] = self.pods.get((have, need), 0) + nbytes
            for pod in need:
                if pod >= 0:
                    self.pod_ingress[pod] = self.pod_ingress.get(pod, 0) + nbytes


class _Numbers:
    """Numbers of distinct tuples; demands share them, so that most are told apart without comparing."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_value: dict[tuple[int, ...], int] = {}

    def of(self, value: tuple[int, ...]) -> int:
        found = self._by_id.get(id(value))
        if found is None:
            found = self._by_value.setdefault(value, len(self._by_value))
            self._by_id[id(value)] = found
        return found

    def values(self) -> list[tuple[int, ...]]:
        return list(self._by_value)
