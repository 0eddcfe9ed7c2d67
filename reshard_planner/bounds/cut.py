"""Cuts: bytes that must pass a set of ports, over the rate of those ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from reshard_planner.errors import InputError
from reshard_planner.intset import format_ints, parse_ints

CutKind = Literal[
    "none",
    "domain_ingress",
    "egress",
    "pod_ingress",
    "pod_egress",
    "port_in",
    "nvlink_port_in",
    "nvlink_port_out",
    "nvlink_domain",
    "prices",
]

CUT_KINDS: tuple[CutKind, ...] = get_args(CutKind)
"""All kinds of cuts."""

Resource = Literal["nic_in", "nic_out", "nvlink_in", "nvlink_out", "uplink_in", "uplink_out"]

RESOURCES: tuple[Resource, ...] = get_args(Resource)
"""What a price may stand on: NIC groups, NVLink ports of ranks and uplinks of pods, in one direction."""

Weights = tuple[tuple[str, str, int], ...]
"""Prices as a certificate stores them: resource, numbers such as ``0-3,8``, and weight."""

Port = tuple[Resource, int]
"""One port in one direction: NIC groups, ranks and pods by number."""

MAX_WEIGHT = 10**6
"""Largest weight, so that the price of a class fits in 64 bits."""

LONGEST_NAME = 120
"""Characters up to which the ports of a price cut are listed by name."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes that must pass a set of ports.

    Attributes:
        kind: which ports are meant.
        members: domains or pods of the cut, or the one rank of a port cut; ascending; empty for prices.
        nbytes: bytes that must pass; with prices, the sum over classes of bytes times the least price of
            bringing them everywhere.
        bytes_per_s: rate of the ports together; with prices, the sum of weight times rate.
        weights: the prices, for the kind ``prices``.
    """

    kind: CutKind
    members: tuple[int, ...]
    nbytes: int
    bytes_per_s: int
    weights: Weights = ()

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
            case "pod_ingress" | "pod_egress":
                return f"pods {numbers}" if len(self.members) > 1 else f"pod {numbers}"
            case "port_in" | "nvlink_port_in" | "nvlink_port_out":
                return f"rank {numbers}"
            case "prices":
                return _describe(self.weights)
            case "none":
                return "none"


NO_CUT = Cut("none", (), 0, 1)


def _describe(weights: Weights) -> str:
    parts = [
        f"{resource.replace('_', ' ')} {numbers}" + (f" x{weight}" if weight > 1 else "")
        for resource, numbers, weight in weights
    ]
    text = "; ".join(parts)
    if len(text) <= LONGEST_NAME:
        return text
    kinds = list(dict.fromkeys(resource.replace("_", " ") for resource, _, _ in weights))
    return f"weighted ports ({', '.join(kinds)})"


def pack_weights(prices: Mapping[Port, int]) -> Weights:
    """Prices as a certificate stores them: equal weights of a resource together, in order."""
    together: dict[tuple[int, int], list[int]] = {}
    for (resource, number), weight in sorted(prices.items()):
        if weight:
            together.setdefault((RESOURCES.index(resource), weight), []).append(number)
    return tuple(
        (RESOURCES[at], format_ints(numbers), weight) for (at, weight), numbers in sorted(together.items())
    )


def unpack_weights(weights: Iterable[tuple[str, str, int]]) -> dict[Port, int]:
    """The price of every port that has one.

    Raises:
        InputError: if a resource is unknown, numbers are no list, a weight is out of range, or a port has
            two weights.
    """
    prices: dict[Port, int] = {}
    for name, numbers, weight in weights:
        resource = next((known for known in RESOURCES if known == name), None)
        if resource is None:
            raise InputError(f"resource {name!r} is unknown; expected one of {', '.join(RESOURCES)}")
        if not 1 <= weight <= MAX_WEIGHT:
            raise InputError(f"weight {weight} of {name} {numbers} is not from 1 to {MAX_WEIGHT}")
        try:
            listed = parse_ints(numbers)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from None
        for number in listed:
            if (resource, number) in prices:
                raise InputError(f"{name} {number} has two weights")
            prices[resource, number] = weight
    return prices
