"""What binds a plan, in words: the cut of its certificate, which bytes must pass which ports."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.bounds import CUT_KINDS, CutKind
from reshard_planner.errors import InputError
from reshard_planner.ir.certificate import BoundClaim
from reshard_planner.render.text import format_nbytes, format_ranks, format_rate, format_s, plain

MAX_PORTS = 6
"""Ports of a price cut that are named."""


def bound_sentence(bound: BoundClaim, nic_names: Sequence[str] = ()) -> str:
    """T* and the binding cut as a sentence: bytes, the ports that they must pass, and how long that takes.

    Args:
        bound: the bound that a certificate claims.
        nic_names: display names of the NIC groups by number, where they are known.

    Raises:
        InputError: if it has bytes in its cut, and a term that is not known or says that there is no cut.
    """
    if not bound.cut_nbytes:
        return "No bytes have to leave a rank, so nothing binds: T* is 0 s."
    return (
        f"T*, the least time of any plan of least payload, is {format_s(bound.time_s)}:"
        f" {why_bound(bound, nic_names)}, {format_rate(bound.cut_bytes_per_s)} together."
    )


def why_bound(bound: BoundClaim, nic_names: Sequence[str] = ()) -> str:
    """Which bytes must pass which ports, as a clause that the rate of these ports may follow.

    Args:
        bound: the bound, with bytes in its cut.
        nic_names: display names of the NIC groups by number, where they are known.

    Raises:
        InputError: if its term is not known, or says that there is no cut.
    """
    nbytes = format_nbytes(bound.cut_nbytes)
    members = bound.cut_members
    several = len(members) > 1
    which, its = format_ranks(members, 40), "their" if several else "its"
    match cut_kind(bound):
        case "domain_ingress":
            return (
                f"{nbytes} must enter domain {which}, which has none of them, over its NICs (domain ingress)"
            )
        case "egress":
            domains = f"domains {which}" if several else f"domain {which}"
            alone = "alone have them, or can pass them on" if several else "alone has them"
            return f"{nbytes} must leave {domains}, which {alone}, over {its} NICs (egress)"
        case "pod_ingress":
            return f"{nbytes} must enter pod {which}, which has none of them, over its uplink (pod ingress)"
        case "pod_egress":
            pods = f"pods {which}" if several else f"pod {which}"
            alone = "alone have them, or can pass them on" if several else "alone has them"
            uplinks = "uplinks" if several else "uplink"
            return f"{nbytes} must leave {pods}, which {alone}, over {its} {uplinks} (pod egress)"
        case "port_in":
            return (
                f"rank {which} needs {nbytes} that it does not hold, and takes them in over its NIC and its"
                " NVLink port together (port in)"
            )
        case "nvlink_port_in":
            return (
                f"rank {which} needs {nbytes} that it does not hold and a neighbour holds, and takes them in"
                " over its NVLink port (NVLink port in)"
            )
        case "nvlink_port_out":
            return (
                f"rank {which} is the only one of its domain with {nbytes} that neighbours need, and hands"
                " them out over its NVLink port (NVLink port out)"
            )
        case "nvlink_domain":
            return (
                f"the ranks of domain {which} must get {nbytes} from one another, besides what comes over the"
                " network, over their NVLink ports (NVLink domain)"
            )
        case "none":
            raise InputError(
                f"the plan's bound has the term 'none', but {nbytes} in its cut; expected 0 bytes"
            )
        case "prices":
            return (
                f"{nbytes} must pass {_ports(bound, nic_names)} (prices; each byte counts as often as it must"
                " pass them, by their weights)"
            )


def cut_kind(bound: BoundClaim) -> CutKind:
    """What kind of cut the term of a bound is.

    Raises:
        InputError: if it is none that is known.
    """
    kind = next((known for known in CUT_KINDS if known == bound.term), None)
    if kind is None:
        raise InputError(
            f"the plan's bound has the term {plain(bound.term)!r}; expected one of {', '.join(CUT_KINDS)}"
        )
    return kind


def _ports(bound: BoundClaim, nic_names: Sequence[str]) -> str:
    """The ports of a price cut, each resource with its numbers."""
    words = {"nic": "NIC group", "nvlink": "NVLink port of rank", "uplink": "uplink of pod"}
    found = []
    for resource, numbers, weight in bound.cut_weights:
        kind, _, direction = resource.partition("_")
        shown = numbers if len(numbers) <= 40 else f"{numbers[:18]}...{numbers[-18:]}"
        name = f"{words.get(kind, kind)} {shown}"
        if kind == "nic" and numbers.isdecimal() and int(numbers) < len(nic_names):
            name = nic_names[int(numbers)]
        times = f" (weight {weight})" if weight > 1 else ""
        found.append(f"{name} {direction}{times}")
    rest = f" and {len(found) - MAX_PORTS} more" if len(found) > MAX_PORTS else ""
    return " or ".join(found[:MAX_PORTS]) + rest
