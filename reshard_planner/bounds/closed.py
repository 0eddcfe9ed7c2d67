"""Cuts in closed form: the candidates that usually bind, and the largest of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from reshard_planner.bounds.cut import NO_CUT, Cut, CutKind
from reshard_planner.bounds.needs import Domains, Needs
from reshard_planner.bounds.nics import NicLoads
from reshard_planner.bounds.sums import evaluate
from reshard_planner.capacities import Capacities

NEARLY_LONGEST = 1 + 1e-12
"""Ratio to the longest within which a time in floating point may be the longest."""


def largest_closed_cut(needs: Needs, capacities: Capacities) -> Cut:
    """The best of the cuts that usually bind, without any solver.

    Raises:
        UnsupportedError: if bytes must cross the network but no GPU on one side has a NIC.
    """
    for holding in {holding for holding, _ in needs.crossing}:
        if not capacities.network(holding):
            evaluate("egress", holding, needs, capacities)
    best = NO_CUT
    for kind, members in _candidates(needs, capacities):
        best = larger(best, evaluate(kind, members, needs, capacities))
    return best


def larger(cut: Cut, other: Cut) -> Cut:
    """The cut that proves more; the first of equals."""
    return other if other.nbytes * cut.bytes_per_s > cut.nbytes * other.bytes_per_s else cut


def restricted_time(needs: Needs, capacities: Capacities) -> Fraction:
    """The closed form of the network part of T0, in seconds, without a solver."""
    return NicLoads(needs, capacities).closed_time()


def _candidates(needs: Needs, capacities: Capacities) -> Iterator[tuple[CutKind, Domains]]:
    yield from (("domain_ingress", (domain,)) for domain in sorted(needs.ingress))
    rate = {domain: capacities.network((domain,)) for domain in capacities.ranks}
    holding = {domain for domains, _ in needs.crossing for domain in domains}
    for domains in _emitting(needs.crossing, rate, holding, needs.ingress):
        yield "egress", domains
    yield from (("pod_ingress", (pod,)) for pod in sorted(needs.pod_ingress))
    having = {pod for pods, _ in needs.pods for pod in pods if pod >= 0}
    for pods in _emitting(needs.pods, dict(enumerate(capacities.uplink)), having, needs.pod_ingress):
        yield "pod_egress", pods
    yield from _nvlink_candidates(needs, capacities)


def _emitting(
    crossing: Mapping[tuple[Domains, Domains], int],
    rate: Mapping[int, int],
    holding: set[int],
    needing: Iterable[int],
) -> Iterator[Domains]:
    """Of the domains or pods that alone hold something the one that takes longest, all that hold, and all."""
    alone: dict[int, int] = {}
    for (holders, _), nbytes in crossing.items():
        if len(holders) == 1 and holders[0] >= 0:
            alone[holders[0]] = alone.get(holders[0], 0) + nbytes
    if alone:
        yield (max(sorted(alone), key=lambda number: Fraction(alone[number], rate[number])),)
    for members in dict.fromkeys((tuple(sorted(holding)), tuple(sorted({*holding, *needing})))):
        if len(members) > 1:
            yield members


def _nvlink_candidates(needs: Needs, capacities: Capacities) -> Iterator[tuple[CutKind, Domains]]:
    """The cut of each kind that takes longest, first in order of domains among nearly equal ones."""
    nvlink, domain_of = capacities.nvlink, capacities.domain_of
    inside = {domain: len(ranks) > 1 for domain, ranks in capacities.ranks.items()}
    times: dict[CutKind, dict[int, float]] = {
        "nvlink_domain": {},
        "port_in": {},
        "nvlink_port_in": {},
        "nvlink_port_out": {},
    }
    missing: dict[int, int] = {}
    for rank, nbytes in needs.missing.items():
        domain = domain_of[rank]
        if inside[domain]:
            missing[domain] = missing.get(domain, 0) + nbytes
            times["port_in"][rank] = nbytes / (nvlink[rank] + capacities.nic(rank))
    for domain, nbytes in missing.items():
        rate = sum(nvlink[rank] for rank in capacities.ranks[domain])
        times["nvlink_domain"][domain] = (nbytes - needs.ingress.get(domain, 0)) / rate
    times["nvlink_port_in"] = {rank: nbytes / nvlink[rank] for rank, nbytes in needs.nearby.items()}
    times["nvlink_port_out"] = {rank: nbytes / nvlink[rank] for rank, nbytes in needs.sole.items()}
    for kind, found in times.items():
        longest = max(found.values(), default=0.0)
        yield from (
            (kind, (number,))
            for number, time in sorted(found.items())
            if time * NEARLY_LONGEST >= longest > 0
        )
