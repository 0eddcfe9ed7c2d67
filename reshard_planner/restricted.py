"""The parts of T0: least times when only ranks that hold or need the bytes use their NICs.

Bytes that only some NICs may carry take at least their sum over the sum of those NICs' rates. The sets of
NICs that are tried are those of single classes, of whole domains, and all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand

Groups = frozenset[int]
"""NIC groups; -1 stands for a GPU without NIC."""

MAX_SETS = 512
"""Distinct sets of NICs up to which every one is tried as a bottleneck of all that lies within it."""


def restricted_ingress(crossing: Sequence[Demand], capacities: Capacities) -> dict[int, Fraction]:
    """Per domain in need, the least time in seconds for its needers' NICs to take in what it needs."""
    groups_by_domain = cache(partial(_groups_by_domain, capacities))
    loads: dict[int, dict[Groups, int]] = {}
    for demand in crossing:
        needing = groups_by_domain(demand.needers)
        for domain in demand.needing_domains:
            sums = loads.setdefault(domain, {})
            sums[needing[domain]] = sums.get(needing[domain], 0) + demand.nbytes
    return {domain: _least_time(sums, capacities, [Groups().union(*sums)]) for domain, sums in loads.items()}


def restricted_egress(crossing: Sequence[Demand], capacities: Capacities) -> Fraction:
    """Least time in seconds for holders to emit every byte once, and for all who may to emit every copy.

    Needers in a domain of a holder can get the bytes over NVLink and emit them first, too; needers in
    other domains can relay them if more than one domain is in need.
    """
    groups_by_domain = cache(partial(_groups_by_domain, capacities))
    once: dict[Groups, int] = {}
    by_domain: dict[int, Groups] = {}
    emitters: set[int] = set()
    copies = 0
    for demand in crossing:
        holding, needing = groups_by_domain(demand.holders), groups_by_domain(demand.needers)
        first = Groups().union(*holding.values(), *(needing.get(domain, ()) for domain in holding))
        once[first] = once.get(first, 0) + demand.nbytes
        if len(holding) == 1:
            (domain,) = holding
            by_domain[domain] = by_domain.get(domain, Groups()) | first
        emitters |= first
        if len(demand.needing_domains) > 1:
            emitters.update(*(needing[domain] for domain in demand.needing_domains))
        copies += demand.nbytes * len(demand.needing_domains)
    unique = _least_time(once, capacities, [*by_domain.values(), Groups().union(*once)])
    return max(unique, _time(copies, emitters, capacities))


def _least_time(loads: Mapping[Groups, int], capacities: Capacities, wider: Iterable[Groups]) -> Fraction:
    """The longest time of any tried set of NICs: all loads that only its members may carry, over its rate."""
    best = Fraction(0)
    tried = {*wider, *(loads if len(loads) <= MAX_SETS else ())}
    for members in sorted(tried, key=sorted):
        inside = sum(nbytes for groups, nbytes in loads.items() if groups <= members)
        best = max(best, _time(inside, members, capacities))
    return best


def _time(nbytes: int, members: Iterable[int], capacities: Capacities) -> Fraction:
    rate = sum(capacities.nic_rate[group] for group in members if group >= 0)
    return Fraction(nbytes, rate) if rate else Fraction(0)


def _groups_by_domain(capacities: Capacities, ranks: Ranks) -> dict[int, Groups]:
    """NIC groups of some ranks, per domain."""
    found: dict[int, set[int]] = {}
    for rank in ranks:
        found.setdefault(capacities.domain_of[rank], set()).add(capacities.nic_group[rank])
    return {domain: Groups(groups) for domain, groups in found.items()}
