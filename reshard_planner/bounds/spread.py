"""Even spreads of all bytes: if one fits within a time that some cut proves, nothing better exists."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks
from reshard_planner.bounds.bottleneck import ROUNDING
from reshard_planner.bounds.needs import Domains, Needs
from reshard_planner.capacities import Capacities

Floats = NDArray[np.float64]

Way = Literal["no proxies", "proxies take in", "proxies take in and emit"]
"""What a spread uses the NICs of ranks for that neither hold nor need the bytes."""


class EvenSpreads:
    """Spreads of all bytes in which each class is spread evenly; every way to spread is computed once.

    Every domain in need takes in over its needers' NICs in proportion to their rates; NVLink transfers are
    shared by all that have the bytes; one share, equal for all classes, says how many of the further copies
    holders emit and how many the needers relay. With proxies, all NICs of a domain take in, and if that does
    not do, emit as well.
    """

    def __init__(self, needs: Needs, capacities: Capacities) -> None:
        self._needs, self._capacities = needs, capacities
        self._spreads: dict[Way, _Spread] = {}

    def fit(self, time: Fraction, *, proxies: bool) -> bool:
        """Whether one of them has moved all bytes within ``time``, in seconds."""
        if not uplinks_fit(self._needs, self._capacities, time):
            return False
        ways: tuple[Way, ...] = (
            ("proxies take in", "proxies take in and emit") if proxies else ("no proxies",)
        )
        return any(self._spread(way).fits(time) for way in ways)

    def _spread(self, way: Way) -> _Spread:
        if way not in self._spreads:
            self._spreads[way] = _Spread(self._needs, self._capacities, way)
        return self._spreads[way]


def uplinks_fit(needs: Needs, capacities: Capacities, time: Fraction) -> bool:
    """Whether no uplink binds within ``time``, whatever the plan: each could carry all copies."""
    if not capacities.pod_of:
        return True
    copies = sum(nbytes * len(needing) for (_, needing), nbytes in needs.crossing.items())
    return copies <= min(capacities.uplink[pod] for pod in capacities.pod_of.values()) * time


def nvlink_is_slack(needs: Needs, capacities: Capacities, time: Fraction, *, proxies: bool) -> bool:
    """Whether NVLink never binds within ``time``, wherever bytes enter and leave.

    A rank takes in what it misses, and sends no more than what enters at its NIC, as much as it misses, and
    its share of what its domain holds and a neighbour lacks. With proxies, what its NIC emits may come to it
    over NVLink, and what the other NICs of its domain emit may leave it so.
    """
    seconds = float(time)
    for domain, ranks in capacities.ranks.items():
        if len(ranks) < 2:
            continue
        whole = float(capacities.network((domain,))) * seconds
        for rank in ranks:
            if not proxies and rank not in needs.missing and rank not in needs.lent:
                continue
            load = float(needs.missing.get(rank, 0)) + needs.lent.get(rank, 0.0)
            load += whole if proxies else capacities.nic(rank) * seconds
            if load > capacities.nvlink[rank] * seconds:
                return False
    return True


class _Spread:
    """Loads of all ports, in bytes; emissions as a fixed part, and further ones by either side."""

    def __init__(self, needs: Needs, capacities: Capacities, way: Way) -> None:
        self._needs = needs
        self._ranks = capacities.ranks
        self._entry_proxies = way != "no proxies"
        self._emission_proxies = way == "proxies take in and emit"
        size, groups = len(capacities.domain_of), len(capacities.nic_rate)
        self._group = np.array(capacities.nic_group, dtype=np.int64)
        self._rate = np.array(capacities.nic_rate, dtype=np.float64)
        self._nvlink = np.array(capacities.nvlink, dtype=np.float64)
        self._nic_in, self._fixed, self._by_holders, self._by_needers = (np.zeros(groups) for _ in range(4))
        self._nvlink_in, self._nvlink_out = np.zeros(size), np.zeros(size)
        self._possible = True
        self._add_entries()
        self._add_emissions()

    def fits(self, time: Fraction) -> bool:
        if not self._possible:
            return False
        room = self._rate * (float(time) * ROUNDING)
        links = self._nvlink * (float(time) * ROUNDING)
        if (self._nic_in > room).any() or (self._nvlink_in > links).any() or (self._nvlink_out > links).any():
            return False
        # fixed + by_needers + share * (by_holders - by_needers) <= room, for one share from 0 to 1
        slope = self._by_holders - self._by_needers
        left = room - self._fixed - self._by_needers
        if (left[slope == 0] < 0).any():
            return False
        rising, falling = slope > 0, slope < 0
        most = min(1.0, (left[rising] / slope[rising]).min(initial=1.0))
        least = max(0.0, (left[falling] / slope[falling]).max(initial=0.0))
        return bool(least <= most * ROUNDING)

    def _add_entries(self) -> None:
        needs = self._needs
        crossing = needs.copies > 0
        for (needers, needing), nbytes in needs.sums(crossing, needs.needers, needs.needing).items():
            by_domain = needs.by_domain(needs.rank_sets[needers])
            for domain in needs.domain_sets[needing]:
                self._enter(domain, by_domain[domain], float(nbytes))
        relayed = needs.sums(needs.copies > 1, needs.needers, needs.needing, needs.copies - 1)
        for (needers, needing), nbytes in relayed.items():
            by_domain = needs.by_domain(needs.rank_sets[needers])
            domains = needs.domain_sets[needing]
            self._add(self._by_needers, self._relays(by_domain, domains), float(nbytes))

    def _relays(self, by_domain: dict[int, Ranks], domains: Domains) -> list[int]:
        """What a proxy takes in suffices for its share of what its side relays."""
        ranks = self._ranks if self._emission_proxies else by_domain
        return [rank for domain in domains for rank in ranks[domain]]

    def _add_emissions(self) -> None:
        needs = self._needs
        apart = (needs.copies > 0) & ~needs.near
        once = needs.sums(apart, needs.holders, needs.holding)
        further = needs.sums(apart, needs.holders, needs.holding, needs.copies - 1)
        for (holders, holding), nbytes in once.items():
            held = needs.by_domain(needs.rank_sets[holders])
            self._emit(held, {}, needs.domain_sets[holding], float(nbytes), float(further[holders, holding]))
        for joint in needs.near_classes:
            held = needs.by_domain(joint.holders)
            each = float(joint.nbytes)
            lacking = self._share(held, needs.by_domain(joint.needers), each)
            copies = len(joint.needing_domains)
            if copies:
                self._emit(held, lacking, joint.holder_domains, each, (copies - 1) * each)

    def _add(self, loads: Floats, ranks: list[int], nbytes: float) -> None:
        """Spread bytes over the NIC groups of some ranks in proportion to their rates."""
        groups = np.unique(self._group[ranks])
        groups = groups[groups >= 0]
        if not len(groups):
            self._possible = False
            return
        rate = self._rate[groups]
        loads[groups] += nbytes * rate / rate.sum()

    def _per_rank(self, ranks: NDArray[np.int64], nbytes: float) -> Floats:
        """Share of each rank in bytes that are spread over the NIC groups of some, 0 without a NIC."""
        group = self._group[ranks]
        with_nic = group >= 0
        groups, inverse, sharing = np.unique(group[with_nic], return_inverse=True, return_counts=True)
        shares = np.zeros(len(ranks))
        if len(groups):
            part = nbytes * self._rate[groups] / self._rate[groups].sum()
            shares[with_nic] = (part / sharing)[inverse.reshape(-1)]
        return shares

    def _enter(self, domain: int, needers: Ranks, nbytes: float) -> None:
        """Take in over NICs of a domain, and share over NVLink what the needers then miss."""
        takers = self._ranks[domain] if self._entry_proxies else list(needers)
        self._add(self._nic_in, takers, nbytes)
        if len(takers) == 1:
            return
        ranks, reached = np.array(takers, dtype=np.int64), np.array(needers, dtype=np.int64)
        entering = self._per_rank(ranks, nbytes)
        own = np.isin(ranks, reached)
        count = len(needers)
        self._nvlink_in[reached] += nbytes
        self._nvlink_in[ranks[own]] -= entering[own]
        leaving = entering if count > 1 else np.where(own, 0.0, entering)
        self._nvlink_out[ranks] += leaving
        # what enters leaves once for sure, and the needers share the other transfers
        at_needers = float(entering[own].sum())
        others = max(0, count - 2) * at_needers + (count - 1) * (nbytes - at_needers)
        self._nvlink_out[reached] += others / count

    def _share(
        self, holders: dict[int, Ranks], needers: dict[int, Ranks], nbytes: float
    ) -> dict[int, list[int]]:
        """Share over NVLink what a domain holds; per domain, the needers that get it so."""
        near: dict[int, list[int]] = {}
        for domain, held in holders.items():
            lacking = [rank for rank in needers.get(domain, ()) if rank not in held]
            if not lacking:
                continue
            near[domain] = lacking
            few, many = len(held), len(lacking)
            self._nvlink_in[lacking] += nbytes
            leaving = max(nbytes, many * nbytes * few / (few + many))
            self._nvlink_out[list(held)] += leaving / few
            self._nvlink_out[lacking] += (many * nbytes - leaving) / many
        return near

    def _emit(
        self,
        held: dict[int, Ranks],
        lacking: dict[int, list[int]],
        domains: Domains,
        once: float,
        further: float,
    ) -> None:
        """Emit from holding domains; a neighbour's NIC is handed the bytes by the holders in equal shares."""
        part = [rank for domain in domains for rank in (*held[domain], *lacking.get(domain, ()))]
        ranks = (
            [rank for domain in domains for rank in self._ranks[domain]] if self._emission_proxies else part
        )
        self._add(self._fixed, ranks, once)
        self._add(self._by_holders, ranks, further)
        if not self._emission_proxies or len(part) == len(ranks):
            return
        at = np.array(ranks, dtype=np.int64)
        handed = np.where(np.isin(at, part), 0.0, self._per_rank(at, once + further))
        self._nvlink_in[at] += handed
        start = 0
        for domain in domains:
            stop = start + len(self._ranks[domain])
            self._nvlink_out[list(held[domain])] += handed[start:stop].sum() / len(held[domain])
            start = stop
