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
from functools import cache, partial
from itertools import combinations
from typing import Literal, get_args

from reshard_planner.atoms import Ranks
from reshard_planner.demand import Demand
from reshard_planner.errors import UnsupportedError
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
        cut: a cut whose time is T*.
    """

    time: Fraction
    t0: Fraction
    cut: Cut


class Capacities:
    """Rates of the NIC groups and NVLink ports that the ranks of a reshard have, per domain."""

    def __init__(self, ports: Ports, ranks: Iterable[int]) -> None:
        self.domain_of: list[int] = ports.domain.tolist()
        self.nvlink: list[int] = ports.nvlink_bytes_per_s.tolist()
        self.nic_group: list[int] = ports.nic_group.tolist()
        self.nic_rate: list[int] = ports.nic_bytes_per_s.tolist()
        self.groups: dict[int, set[int]] = {}
        self.ranks: dict[int, list[int]] = {}
        for rank in sorted(set(ranks)):
            domain = self.domain_of[rank]
            self.ranks.setdefault(domain, []).append(rank)
            self.groups.setdefault(domain, set())
            if self.nic_group[rank] >= 0:
                self.groups[domain].add(self.nic_group[rank])

    def network(self, domains: Iterable[int]) -> int:
        """Rate of all NICs of some domains, in bytes per second and direction."""
        return sum(self.nic_rate[group] for domain in domains for group in self.groups.get(domain, ()))

    def nic(self, rank: int) -> int:
        """Rate of a rank's NIC group, 0 without a NIC."""
        group = self.nic_group[rank]
        return self.nic_rate[group] if group >= 0 else 0

    def of_ranks(self, ranks: Iterable[int]) -> int:
        """Rate of the NIC groups of some ranks together."""
        groups = {self.nic_group[rank] for rank in ranks} - {-1}
        return sum(self.nic_rate[group] for group in groups)


class Needs:
    """Bytes that ports must pass, summed once from the demands.

    Attributes:
        ingress: per domain, bytes that must come in over the network.
        missing: per rank, bytes that it needs and does not hold.
        nearby: per rank, those of them that its domain holds; a plan of least payload moves them over NVLink.
        sole: per rank, bytes that a neighbour needs and no other rank of the domain holds.
        crossing: the demands that some domain takes in.
    """

    def __init__(self, demands: Sequence[Demand], capacities: Capacities) -> None:
        self.ingress: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.nearby: dict[int, int] = {}
        self.sole: dict[int, int] = {}
        self.crossing = [demand for demand in demands if demand.needing_domains]
        domain_of = capacities.domain_of
        for demand in demands:
            nbytes = demand.nbytes
            holders = set(demand.holders)
            for domain in demand.needing_domains:
                self.ingress[domain] = self.ingress.get(domain, 0) + nbytes
            holding = set(demand.holder_domains)
            wanting = set()
            for rank in demand.needers:
                if rank not in holders:
                    self.missing[rank] = self.missing.get(rank, 0) + nbytes
                    if domain_of[rank] in holding:
                        self.nearby[rank] = self.nearby.get(rank, 0) + nbytes
                        wanting.add(domain_of[rank])
            if wanting:
                held = Counter(domain_of[rank] for rank in demand.holders)
                for rank in demand.holders:
                    if held[domain_of[rank]] == 1 and domain_of[rank] in wanting:
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
    return Bound(best.time, max(best.time, _restricted(needs, capacities)), best)


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
            f"{nbytes} bytes must pass the NICs of {'domain' if len(members) == 1 else 'domains'}"
            f" {','.join(map(str, members))}, where no rank has a NIC"
        )
    return Cut(kind, members, nbytes, max(1, rate))


def _egress(domains: set[int], needs: Needs) -> int:
    """Bytes that the domains must emit: what only they hold, and all copies where only they take part."""
    total = 0
    for demand in needs.crossing:
        if domains.issuperset(demand.holder_domains):
            all_inside = domains.issuperset(demand.needing_domains)
            total += demand.nbytes * (len(demand.needing_domains) if all_inside else 1)
    return total


def _restricted(needs: Needs, capacities: Capacities) -> Fraction:
    """Cuts that hold when only ranks that hold or need the bytes may use their NICs."""
    ingress: dict[int, int] = {}
    receivers: dict[int, set[int]] = {}
    sole_in: dict[int, int] = {}
    sole_out: dict[int, int] = {}
    emitters: set[int] = set()
    total = 0
    groups_by_domain = cache(partial(_groups_by_domain, capacities))
    for demand in needs.crossing:
        total += demand.nbytes * len(demand.needing_domains)
        holding, needing = groups_by_domain(demand.holders), groups_by_domain(demand.needers)
        for domain in demand.needing_domains:
            groups = needing[domain]
            ingress[domain] = ingress.get(domain, 0) + demand.nbytes
            receivers.setdefault(domain, set()).update(groups)
            if len(groups) == 1:
                (group,) = groups
                sole_in[group] = sole_in.get(group, 0) + demand.nbytes
        first: set[int] = set()
        for domain, groups in holding.items():
            first |= groups | needing.get(domain, frozenset())
        if len(first) == 1:
            (group,) = first
            sole_out[group] = sole_out.get(group, 0) + demand.nbytes
        emitters |= first
        for groups in needing.values():
            emitters |= groups
    loads = [(nbytes, receivers[domain]) for domain, nbytes in ingress.items()]
    loads += [(nbytes, {group}) for sums in (sole_in, sole_out) for group, nbytes in sums.items()]
    loads.append((total, emitters))
    best = Fraction(0)
    for nbytes, ports in loads:
        rate = sum(capacities.nic_rate[group] for group in ports if group >= 0)
        if rate and nbytes * best.denominator > best.numerator * rate:
            best = Fraction(nbytes, rate)
    return best


def _groups_by_domain(capacities: Capacities, ranks: Ranks) -> dict[int, frozenset[int]]:
    """NIC groups of some ranks, per domain; -1 stands for a GPU without NIC."""
    found: dict[int, set[int]] = {}
    for rank in ranks:
        found.setdefault(capacities.domain_of[rank], set()).add(capacities.nic_group[rank])
    return {domain: frozenset(groups) for domain, groups in found.items()}
