"""The least time of any plan of least payload: T*, T0, and the cut that proves T*.

Every bound is a *cut*: bytes that must pass a set of ports, over the rate of those ports. A cut is a
proof on its own; :func:`evaluate` sums it from the demands. Times are exact fractions of seconds at
datasheet rates. Formulas: docs/mathematics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Literal, get_args

from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand
from reshard_planner.errors import UnsupportedError
from reshard_planner.restricted import restricted_egress, restricted_ingress
from reshard_planner.topology import Ports

CutKind = Literal[
    "none",
    "domain_ingress",
    "egress",
    "port_in",
    "nvlink_port_in",
    "nvlink_port_out",
    "nvlink_domain",
]

CUT_KINDS: tuple[CutKind, ...] = get_args(CutKind)
"""All kinds of cuts."""

ALL_SUBSETS_UP_TO = 8
"""Domains up to which every egress cut is tried; above, the four that usually bind."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes that must pass a set of ports.

    Attributes:
        kind: which ports are meant.
        members: domains of the cut, or the one rank of a port cut; ascending.
        nbytes: bytes that must pass.
        bytes_per_s: rate of the ports together.
    """

    kind: CutKind
    members: tuple[int, ...]
    nbytes: int
    bytes_per_s: int

    @property
    def time(self) -> Fraction:
        """Least time in seconds that the cut proves."""
        return Fraction(self.nbytes, self.bytes_per_s) if self.nbytes else Fraction(0)

    @property
    def resource(self) -> str:
        """Display name of the ports."""
        numbers = ",".join(map(str, self.members))
        match self.kind:
            case "domain_ingress" | "nvlink_domain":
                return f"domain {numbers}"
            case "egress":
                return f"domains {numbers}" if len(self.members) > 1 else f"domain {numbers}"
            case "port_in" | "nvlink_port_in" | "nvlink_port_out":
                return f"rank {numbers}"
            case "none":
                return "none"


NO_CUT = Cut("none", (), 0, 1)


@dataclass(frozen=True, slots=True)
class Bound:
    """Least times, and the cut that proves T*.

    Attributes:
        time: T*, in seconds.
        t0: T0, the bound when only ranks that hold or need the bytes take part, in seconds.
        ingress: per domain in need, the least time in which its needers' NICs can take in what it needs.
        cut: a cut whose time is T*.
    """

    time: Fraction
    t0: Fraction
    ingress: tuple[tuple[int, Fraction], ...]
    cut: Cut


class Needs:
    """Bytes that ports must pass, summed once from the demands.

    Attributes:
        ingress: per domain, bytes that must come in over the network.
        missing: per rank, bytes that it needs and does not hold.
        nearby: per rank, those of them that its domain holds; a plan of least payload moves them over NVLink.
        sole: per rank, bytes that a neighbour needs and no other rank of the domain holds.
        held_alone: per domain, bytes that it alone holds and another one must take in.
        crossing: the demands that some domain takes in.
    """

    def __init__(self, demands: Sequence[Demand], capacities: Capacities) -> None:
        self.ingress: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.nearby: dict[int, int] = {}
        self.sole: dict[int, int] = {}
        self.crossing = [demand for demand in demands if demand.needing_domains]
        self.held_alone: dict[int, int] = {}
        domain_of = capacities.domain_of
        for demand in demands:
            nbytes = demand.nbytes
            holders = set(demand.holders)
            if demand.needing_domains and len(demand.holder_domains) == 1:
                (home,) = demand.holder_domains
                self.held_alone[home] = self.held_alone.get(home, 0) + nbytes
            for domain in demand.needing_domains:
                self.ingress[domain] = self.ingress.get(domain, 0) + nbytes
            holding = set(demand.holder_domains)
            taking = set()
            for rank in demand.needers:
                if rank not in holders:
                    self.missing[rank] = self.missing.get(rank, 0) + nbytes
                    if domain_of[rank] in holding:
                        self.nearby[rank] = self.nearby.get(rank, 0) + nbytes
                        taking.add(domain_of[rank])
            if taking:
                held = Counter(domain_of[rank] for rank in demand.holders)
                for rank in demand.holders:
                    if held[domain_of[rank]] == 1 and domain_of[rank] in taking:
                        self.sole[rank] = self.sole.get(rank, 0) + nbytes


def compute_bound(demands: Sequence[Demand], ports: Ports, ranks: Iterable[int]) -> Bound:
    """T* and T0 in closed form, exact for the cuts that are tried.

    Raises:
        UnsupportedError: if bytes must cross the network but no GPU on one side has a NIC.
    """
    capacities = Capacities(ports, ranks)
    needs = Needs(demands, capacities)
    best = NO_CUT
    for kind, members in _candidates(needs, capacities):
        cut = evaluate(kind, members, needs, capacities)
        if cut.nbytes * best.bytes_per_s > best.nbytes * cut.bytes_per_s:
            best = cut
    ingress = restricted_ingress(needs.crossing, capacities)
    t0 = max(best.time, restricted_egress(needs.crossing, capacities), *ingress.values())
    return Bound(best.time, t0, tuple(sorted(ingress.items())), best)


def _candidates(needs: Needs, capacities: Capacities) -> Iterator[tuple[CutKind, tuple[int, ...]]]:
    yield from (("domain_ingress", (domain,)) for domain in sorted(needs.ingress))
    holding = sorted({domain for demand in needs.crossing for domain in demand.holder_domains})
    involved = sorted({*holding, *needs.ingress})
    if len(involved) <= ALL_SUBSETS_UP_TO:
        subsets = [s for size in range(1, len(involved) + 1) for s in combinations(involved, size)]
        yield from (("egress", subset) for subset in subsets if not set(holding).isdisjoint(subset))
    else:
        yield from (("egress", (domain,)) for domain in holding)
        yield "egress", tuple(holding)
        yield "egress", tuple(involved)
    for domain, ranks in sorted(capacities.ranks.items()):
        if len(ranks) > 1:
            yield "nvlink_domain", (domain,)
            yield from (("port_in", (rank,)) for rank in ranks)
            yield from (("nvlink_port_in", (rank,)) for rank in ranks)
            yield from (("nvlink_port_out", (rank,)) for rank in ranks)


def evaluate(kind: CutKind, members: tuple[int, ...], needs: Needs, capacities: Capacities) -> Cut:
    """Sum one cut.

    Raises:
        UnsupportedError: if bytes must pass ports of no rate.
    """
    match kind:
        case "none":
            return NO_CUT
        case "domain_ingress":
            nbytes = needs.ingress.get(members[0], 0)
            rate = capacities.network(members)
        case "egress":
            nbytes = _egress(set(members), needs)
            rate = capacities.network(members)
        case "port_in":
            nbytes = needs.missing.get(members[0], 0)
            rate = capacities.nvlink[members[0]] + capacities.nic(members[0])
        case "nvlink_port_in":
            nbytes = needs.nearby.get(members[0], 0)
            rate = capacities.nvlink[members[0]]
        case "nvlink_domain":
            ranks = capacities.ranks.get(members[0], [])
            nbytes = sum(needs.missing.get(rank, 0) for rank in ranks) - needs.ingress.get(members[0], 0)
            rate = sum(capacities.nvlink[rank] for rank in ranks)
        case "nvlink_port_out":
            nbytes = needs.sole.get(members[0], 0)
            rate = capacities.nvlink[members[0]]
    if nbytes and not rate:
        raise UnsupportedError(
            f"{nbytes} bytes must pass the NICs of {Cut(kind, members, nbytes, 1).resource},"
            " where no rank has a NIC"
        )
    return Cut(kind, members, nbytes, max(1, rate))


def _egress(domains: set[int], needs: Needs) -> int:
    """Bytes that the domains must emit: what only they hold, and all copies where only they take part."""
    if len(domains) == 1:  # the domains in need are others, so that the first copies are all
        (domain,) = domains
        return needs.held_alone.get(domain, 0)
    total = 0
    for demand in needs.crossing:
        if domains.issuperset(demand.holder_domains):
            all_inside = domains.issuperset(demand.needing_domains)
            total += demand.nbytes * (len(demand.needing_domains) if all_inside else 1)
    return total
