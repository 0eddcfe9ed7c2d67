"""The sum of any cut: bytes and rate from the demands, without a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from reshard_planner.bounds.cut import NO_CUT, Cut, CutKind, Weights, pack_weights, unpack_weights
from reshard_planner.bounds.needs import Domains, Needs
from reshard_planner.bounds.prices import Prices
from reshard_planner.capacities import Capacities
from reshard_planner.errors import InputError, UnsupportedError

Figure = Callable[[Domains, Needs, Capacities], int]
"""Bytes that must pass the ports of some members, or the rate of these ports."""


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
        members: its domains, pods or rank, ascending; one or more for ``egress`` and ``pod_egress``, none for
            ``none`` and ``prices``, else exactly one.
        needs: what must move.
        capacities: rates of the ports.
        weights: prices for the kind ``prices``, as :func:`~reshard_planner.bounds.cut.pack_weights` orders
            them; none for any other kind.
        restricted: whether only ranks that hold or need the bytes may take part; for ``prices`` only.

    Raises:
        UnsupportedError: if bytes must pass NICs of domains in which no rank has one.
        InputError: if members or weights are missing, too many, out of order, or name ports that no rank has.
    """
    if (kind == "prices") != bool(weights):
        raise InputError(f"{kind} has {len(weights)} weights; expected {'some' if not weights else 'none'}")
    of_ports = _PORT_KINDS.get(kind)
    if of_ports is not None:
        return of_ports.sum(kind, members, needs, capacities)
    if members:
        raise InputError(f"{kind} has the members {list(members)}; expected none")
    if kind == "none":
        return NO_CUT
    prices = unpack_weights(weights)
    if pack_weights(prices) != weights:
        raise InputError(
            "weights are not in order; expected each resource and weight once, numbers ascending"
        )
    priced = Prices(prices, needs, capacities, restricted=restricted)
    return Cut(kind, (), priced.nbytes(), priced.bytes_per_s, weights)


def _egress(members: Domains, crossing: Mapping[tuple[Domains, Domains], int]) -> int:
    """Bytes that domains or pods must emit: what only they hold, and all copies where only they take part."""
    inside = set(members)
    total = 0
    for (holding, needing), nbytes in crossing.items():
        if inside.issuperset(holding):
            total += nbytes * (len(needing) if inside.issuperset(needing) else 1)
    return total


def _missing_inside(members: Domains, needs: Needs, capacities: Capacities) -> int:
    """Bytes that the ranks of a domain lack, less those that come over the network."""
    (domain,) = members
    lacking = sum(needs.missing.get(rank, 0) for rank in capacities.ranks[domain])
    return lacking - needs.ingress.get(domain, 0)


def _nics(members: Domains, _: Needs, capacities: Capacities) -> int:
    return capacities.network(members)


def _uplinks(members: Domains, _: Needs, capacities: Capacities) -> int:
    return sum(capacities.uplink[pod] for pod in members)


def _nvlink_port(members: Domains, _: Needs, capacities: Capacities) -> int:
    return capacities.nvlink[members[0]]


def _both_ports(members: Domains, _: Needs, capacities: Capacities) -> int:
    return capacities.nvlink[members[0]] + capacities.nic(members[0])


def _nvlink_domain(members: Domains, _: Needs, capacities: Capacities) -> int:
    return sum(capacities.nvlink[rank] for rank in capacities.ranks[members[0]])


def _exists(member: str, number: int, capacities: Capacities) -> bool:
    match member:
        case "domain":
            return number in capacities.ranks
        case "pod":
            return 0 <= number < len(capacities.uplink)
        case _:
            return 0 <= number < len(capacities.domain_of) and capacities.domain_of[number] >= 0


@dataclass(frozen=True, slots=True)
class _PortKind:
    """How cuts of one kind are summed.

    Attributes:
        nbytes: bytes that must pass the ports of some members.
        bytes_per_s: rate of these ports.
        member: what a member is.
        port: what each port is.
        several: whether a cut may have more than one member.
    """

    nbytes: Figure
    bytes_per_s: Figure
    member: Literal["domain", "pod", "rank"]
    port: str
    several: bool = False

    def sum(self, kind: CutKind, members: Domains, needs: Needs, capacities: Capacities) -> Cut:
        """The cut of these members.

        Raises:
            UnsupportedError: if bytes must pass ports of no rate.
            InputError: if the members are not as the kind demands.
        """
        if not members or (len(members) > 1 and not self.several):
            expected = "at least one" if self.several else "exactly one"
            raise InputError(f"{kind} has {len(members)} members; expected {expected} {self.member}")
        for number in members:
            if not _exists(self.member, number, capacities):
                raise InputError(f"{self.member} {number} is unknown; expected a {self.member} of the spec")
        if list(members) != sorted(set(members)):
            raise InputError(f"members {list(members)} are not distinct and ascending")
        nbytes = self.nbytes(members, needs, capacities)
        rate = self.bytes_per_s(members, needs, capacities)
        cut = Cut(kind, members, nbytes, max(1, rate))
        if nbytes and not rate:
            raise UnsupportedError(
                f"{nbytes} bytes must pass {self.port} of {cut.resource}, where no rank has {self.port}"
            )
        return cut


_PORT_KINDS: Mapping[CutKind, _PortKind] = {
    "domain_ingress": _PortKind(
        lambda members, needs, _: needs.ingress.get(members[0], 0), _nics, "domain", "a NIC"
    ),
    "egress": _PortKind(
        lambda members, needs, _: _egress(members, needs.crossing),
        _nics,
        "domain",
        "a NIC",
        several=True,
    ),
    "pod_ingress": _PortKind(
        lambda members, needs, _: needs.pod_ingress.get(members[0], 0), _uplinks, "pod", "an uplink"
    ),
    "pod_egress": _PortKind(
        lambda members, needs, _: _egress(members, needs.pods),
        _uplinks,
        "pod",
        "an uplink",
        several=True,
    ),
    "port_in": _PortKind(
        lambda members, needs, _: needs.missing.get(members[0], 0),
        _both_ports,
        "rank",
        "an NVLink port or a NIC",
    ),
    "nvlink_port_in": _PortKind(
        lambda members, needs, _: needs.nearby.get(members[0], 0),
        _nvlink_port,
        "rank",
        "an NVLink port",
    ),
    "nvlink_port_out": _PortKind(
        lambda members, needs, _: needs.sole.get(members[0], 0),
        _nvlink_port,
        "rank",
        "an NVLink port",
    ),
    "nvlink_domain": _PortKind(_missing_inside, _nvlink_domain, "domain", "an NVLink port"),
}
