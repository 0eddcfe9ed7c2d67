"""The network part of T0: what NICs must carry if only ranks that hold or need the bytes take part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import numpy as np

from reshard_planner.atoms import Ranks
from reshard_planner.bounds.bottleneck import MAX_ARCS, MAX_SETS, ROUNDING, Members, find_bottleneck, ratio
from reshard_planner.bounds.needs import Needs
from reshard_planner.capacities import Capacities

Loads = dict[Members, int]
"""Bytes by the NIC groups that may carry them."""


class NicLoads:
    """Bytes by the NIC groups that may carry them, per direction.

    Where none of the ranks that take part has a NIC, all NICs of its domain may help.

    Attributes:
        ingress: per domain in need, by the groups of its needers.
        once: first emissions, by the groups of holders and of needers next to them.
        copies: bytes of all emissions together.
        emitters: groups that may make any of them.
    """

    def __init__(self, needs: Needs, capacities: Capacities) -> None:
        self._needs = needs
        self._rate = dict(enumerate(capacities.nic_rate))
        self._groups = _Groups(needs, capacities)
        ranks, domains = needs.rank_sets, needs.domain_sets
        crossing = needs.copies > 0
        ingress: dict[int, Loads] = {}
        for (needers, needing), nbytes in needs.sums(crossing, needs.needers, needs.needing).items():
            for domain in domains[needing]:
                loads = ingress.setdefault(domain, {})
                members = self._groups.needing(ranks[needers], (domain,))
                loads[members] = loads.get(members, 0) + nbytes
        self.ingress = dict(sorted(ingress.items()))
        self.once: Loads = defaultdict(int)
        for members, nbytes, _ in self._emissions():
            self.once[members] += nbytes
        many = needs.sums(needs.copies > 1, needs.needers, needs.needing)
        relays = {self._groups.needing(ranks[needers], domains[needing]) for needers, needing in many}
        self.emitters = tuple(sorted({group for members in (*self.once, *relays) for group in members}))
        self.copies = sum(nbytes * len(needing) for (_, needing), nbytes in needs.crossing.items())

    def closed_time(self) -> Fraction:
        """The longest of the sets that usually bind, in seconds."""
        times = [_closed(loads, self._rate)[0] for loads in self.ingress.values()]
        return max([*times, self._egress_closed()[0]])

    def ingress_bottleneck(self, domain: int) -> tuple[Fraction, Members]:
        """The set of a domain's NIC groups that takes longest, exactly up to rounding, and its time."""
        loads = self.ingress[domain]
        every = _every(loads)
        time = ratio(loads, self._rate, every)
        spread = _spread_time(loads, self._rate)
        if spread <= float(time) * ROUNDING:
            return time, every
        time, members = _closed(loads, self._rate)
        if spread <= float(time) * ROUNDING:
            return time, members
        return find_bottleneck(loads, self._rate, time) or (time, members)

    def egress_bottleneck(self, beyond: Fraction) -> tuple[Fraction, Members] | None:
        """The set of emitting NIC groups that takes longest, if it takes longer than ``beyond``."""
        closed = self._egress_closed()
        if closed[0] <= beyond:
            closed = (beyond, ())
        both: Loads = defaultdict(int, self.once)
        arcs = sum(map(len, both))
        for first, further, relays in self._emissions(relays=True):
            arcs += len(first) + len(relays)
            if arcs > MAX_ARCS:
                break
            both[tuple(sorted({*first, *relays}))] += further
        found = None if arcs > MAX_ARCS else find_bottleneck(both, self._rate, closed[0])
        return found or (closed if closed[1] else None)

    def _egress_closed(self) -> tuple[Fraction, Members]:
        """The longest time of the sets of emitters that usually bind, and the set."""
        speed = sum(self._rate[group] for group in self.emitters)
        copies = Fraction(self.copies, speed) if speed else Fraction(0)
        return max(_closed(self.once, self._rate), (copies, self.emitters))

    def _emissions(self, *, relays: bool = False) -> Iterator[tuple[Members, int, Members]]:
        """First emitters and bytes of first emissions; with ``relays``, bytes of further ones and relays."""
        needs, groups = self._needs, self._groups
        ranks, domains = needs.rank_sets, needs.domain_sets
        at = needs.copies > (1 if relays else 0)
        if not relays:
            apart = needs.sums(at & ~needs.near, needs.holders, needs.holding)
            for (holders, holding), nbytes in apart.items():
                yield groups.emitting(ranks[holders], (), domains[holding]), nbytes, ()
            at = at & needs.near
        for joint in needs.joint(np.flatnonzero(at)):
            first = groups.emitting(joint.holders, joint.needers, joint.holder_domains)
            if relays:
                further = joint.nbytes * (len(joint.needing_domains) - 1)
                yield first, further, groups.needing(joint.needers, joint.needing_domains)
            else:
                yield first, joint.nbytes, ()


class _Groups:
    """NIC groups of sets of ranks, found once per set."""

    def __init__(self, needs: Needs, capacities: Capacities) -> None:
        self._needs = needs
        self._capacities = capacities
        self._needing: dict[tuple[Ranks, tuple[int, ...]], Members] = {}
        self._emitting: dict[tuple[Ranks, Ranks], Members] = {}

    def _of(self, ranks: Iterable[int]) -> set[int]:
        group = self._capacities.nic_group
        return {group[rank] for rank in ranks} - {-1}

    def needing(self, needers: Ranks, domains: tuple[int, ...]) -> Members:
        """Groups of the needers in some domains in need."""
        key = (needers, domains)
        if key not in self._needing:
            ranks = self._needs.by_domain(needers)
            found: set[int] = set()
            for domain in domains:
                found |= self._of(ranks[domain]) or self._capacities.groups[domain]
            self._needing[key] = tuple(sorted(found))
        return self._needing[key]

    def emitting(self, holders: Ranks, needers: Ranks, domains: tuple[int, ...]) -> Members:
        """Groups of the holders and of the needers in their domains."""
        ranks = self._needs.by_domain(needers)
        near = tuple(rank for domain in domains for rank in ranks.get(domain, ()))
        key = (holders, near)
        if key not in self._emitting:
            found = self._of((*holders, *near))
            if not found:
                found = {group for domain in domains for group in self._capacities.groups[domain]}
            self._emitting[key] = tuple(sorted(found))
        return self._emitting[key]


def _closed(loads: Loads, rate: Mapping[int, int]) -> tuple[Fraction, Members]:
    """The longest of the sets of single loads, while they are few, and of all together."""
    tried = {_every(loads), *(loads if len(loads) <= MAX_SETS else ())}
    return max(((ratio(loads, rate, members), members) for members in tried), default=(Fraction(0), ()))


def _every(loads: Loads) -> Members:
    return tuple(sorted({group for members in loads for group in members}))


def _spread_time(loads: Loads, rate: Mapping[int, int]) -> float:
    """Time of the busiest group if every load is spread over its groups in proportion to their rates."""
    per_rate: dict[int, float] = defaultdict(float)
    for members, nbytes in loads.items():
        speed = sum(rate[group] for group in members)
        for group in members:
            per_rate[group] += nbytes / speed
    return max(per_rate.values(), default=0.0)
