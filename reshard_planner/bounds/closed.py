"""Cuts in closed form: candidates, and the sum of any cut of any kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from reshard_planner.bounds.cut import NO_CUT, Cut, CutKind, Weights, unpack_weights
from reshard_planner.bounds.needs import Domains, Needs
from reshard_planner.bounds.nics import NicLoads
from reshard_planner.bounds.prices import Prices
from reshard_planner.capacities import Capacities
from reshard_planner.errors import InputError, UnsupportedError

ROUNDING = 1 + 1e-12
"""Ratio within which times in floating point may be equal."""


def largest_closed_cut(needs: Needs, capacities: Capacities) -> Cut:
    """The best of the cuts that usually bind, without any solver.

    Raises:
        UnsupportedError: if bytes must cross the network but no GPU on one side has a NIC.
    """
    for holding, _ in needs.crossing:
        if not capacities.network(holding):
            evaluate("egress", holding, needs, capacities)
    best = NO_CUT
    for kind, members in (*_network_candidates(needs), *_nvlink_candidates(needs, capacities)):
        best = larger(best, evaluate(kind, members, needs, capacities))
    return best


def larger(cut: Cut, other: Cut) -> Cut:
    """The cut that proves more; the first of equals."""
    return other if other.nbytes * cut.bytes_per_s > cut.nbytes * other.bytes_per_s else cut


def restricted_time(needs: Needs, capacities: Capacities) -> Fraction:
    """The closed form of the network part of T0, in seconds, without a solver."""
    return NicLoads(needs, capacities).closed_time()


def _network_candidates(needs: Needs) -> Iterator[tuple[CutKind, Domains]]:
    yield from (("domain_ingress", (domain,)) for domain in sorted(needs.ingress))
    holding = sorted({domain for domains, _ in needs.crossing for domain in domains})
    alone = {holding[0] for holding, _ in needs.crossing if len(holding) == 1}
    yield from (("egress", (domain,)) for domain in sorted(alone))
    for domains in dict.fromkeys((tuple(holding), tuple(sorted({*holding, *needs.ingress})))):
        if len(domains) > 1:
            yield "egress", domains
    yield from (("pod_ingress", (pod,)) for pod in sorted(needs.pod_ingress))
    pods = sorted({pod for have, _ in needs.pods for pod in have if pod >= 0})
    yield from (("pod_egress", (pod,)) for pod in pods)
    for members in dict.fromkeys((tuple(pods), tuple(sorted({*pods, *needs.pod_ingress})))):
        if len(members) > 1:
            yield "pod_egress", members


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
            (kind, (number,)) for number, time in sorted(found.items()) if time * ROUNDING >= longest > 0
        )


def evaluate(
    kind: CutKind,
    members: tuple[int, ...],
    needs: Needs,
    capacities: Capacities,
    weights: Weights = (),
    *,
    restricted: bool = False,
) -> Cut:
    """Sum one cut.

    Args:
        kind: kind of the cut.
        members: its domains, pods or rank.
        needs: what must move.
        capacities: rates of the ports.
        weights: prices, for the kind ``prices``.
        restricted: whether only ranks that hold or need the bytes may take part; for ``prices`` only.

    Raises:
        UnsupportedError: if bytes must pass ports of no rate.
        InputError: if members or weights are malformed.
        IndexError: if a member or port does not exist.
    """
    if any(member < 0 for member in members) or len(set(members)) < len(members):
        raise InputError(f"members {list(members)} are not distinct numbers from 0 on")
    if (kind == "prices") != bool(weights) or (kind in ("none", "prices") and members):
        raise InputError(f"{len(weights)} weights and {len(members)} members do not go with {kind}")
    match kind:
        case "none":
            return NO_CUT
        case "prices":
            prices = Prices(unpack_weights(weights), needs, capacities, restricted=restricted)
            return Cut(kind, (), prices.nbytes(), max(1, prices.bytes_per_s), weights)
        case "domain_ingress":
            nbytes = needs.ingress.get(members[0], 0)
            rate = capacities.network(members)
        case "egress":
            nbytes = _egress(set(members), needs.crossing)
            rate = capacities.network(members)
        case "pod_ingress":
            nbytes = needs.pod_ingress.get(members[0], 0)
            rate = capacities.uplink[members[0]]
        case "pod_egress":
            nbytes = _egress(set(members), needs.pods)
            rate = sum(capacities.uplink[pod] for pod in members)
        case "port_in":
            nbytes = needs.missing.get(members[0], 0)
            rate = capacities.nvlink[members[0]] + capacities.nic(members[0])
        case "nvlink_port_in":
            nbytes = needs.nearby.get(members[0], 0)
            rate = capacities.nvlink[members[0]]
        case "nvlink_port_out":
            nbytes = needs.sole.get(members[0], 0)
            rate = capacities.nvlink[members[0]]
        case "nvlink_domain":
            ranks = capacities.ranks.get(members[0], [])
            nbytes = sum(needs.missing.get(rank, 0) for rank in ranks) - needs.ingress.get(members[0], 0)
            rate = sum(capacities.nvlink[rank] for rank in ranks)
    if nbytes and not rate:
        raise UnsupportedError(
            f"{nbytes} bytes must pass the NICs of {Cut(kind, members, nbytes, 1).resource},"
            " where no rank has a NIC"
        )
    return Cut(kind, members, nbytes, max(1, rate))


def _egress(members: set[int], crossing: Mapping[tuple[Domains, Domains], int]) -> int:
    """Bytes that domains or pods must emit: what only they hold, and all copies where only they take part."""
    total = 0
    for (holding, needing), nbytes in crossing.items():
        if members.issuperset(holding):
            total += nbytes * (len(needing) if members.issuperset(needing) else 1)
    return total
