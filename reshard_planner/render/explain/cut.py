"""What binds a whole plan, in words: the cut of its certificate."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.ir.certificate import BoundClaim
from reshard_planner.ir.plan import Plan
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.text import format_nbytes, format_ranks, format_rate, format_s


def binding_sentences(facts: Facts) -> list[str]:
    """What binds the whole plan, how much of it is the tensor, and which ports are busiest in this plan."""
    claims = facts.plan.certificate
    found = [cut_text(facts.plan, facts.ports.nic_name)]
    total = claims.bound.cut_nbytes
    if total:
        own = facts.cut_nbytes()
        found.append(
            f"Of these bytes {format_nbytes(own)}, {own / total * 100:.3g} %, are of this tensor."
            if own
            else "None of these bytes are of this tensor: its way is not what binds."
        )
    ports = [("NIC", claims.busiest_nic), ("NVLink port", claims.busiest_nvlink)]
    if facts.plan.spec.topology.pods:
        ports.append(("uplink", claims.busiest_uplink))
    said = [
        f"the busiest {what} is {port.resource}, with {format_nbytes(port.nbytes)} in {format_s(port.time_s)}"
        for what, port in ports
        if port.nbytes
    ]
    if said:
        found.append(f"In this plan {', '.join(said)}; {_gap(claims.gap, several=len(said) > 1)}.")
    return found


def _gap(gap: float | None, *, several: bool) -> str:
    """The longest time of some ports beside T*."""
    which = "the longest of these times is" if several else "that is"
    if gap is None:
        return f"{which} not 0 s, as T* is"
    if gap < 0:
        return f"{which} {-gap * 100:.1f} % below T*, which bounds plans of least payload only"
    if gap >= 1:
        return f"{which} {1 + gap:.2f} times T*"
    return f"{which} {gap * 100:.1f} % above T*"


def cut_text(plan: Plan, nic_names: Sequence[str] = ()) -> str:
    """The binding cut as a sentence: bytes, the ports that they must pass, and how long that takes.

    Args:
        plan: the plan, whose certificate has the cut.
        nic_names: display names of the NIC groups, where they are known.
    """
    bound = plan.certificate.bound
    if not bound.cut_nbytes:
        return "No bytes have to leave a rank, so nothing binds: T* is 0 s."
    return (
        f"T*, the least time of any plan of least payload, is {format_s(bound.time_s)}:"
        f" {_reason(bound, nic_names)}, {format_rate(bound.cut_bytes_per_s)} together."
    )


def _reason(bound: BoundClaim, nic_names: Sequence[str]) -> str:
    nbytes = format_nbytes(bound.cut_nbytes)
    members = bound.cut_members
    several = len(members) > 1
    which, its = format_ranks(members, 40), "their" if several else "its"
    match bound.term:
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
        case _:
            return (
                f"{nbytes} must pass {_ports(bound, nic_names)} (prices; each byte counts as often as it must"
                " pass them, by their weights)"
            )


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
    limit = 6
    rest = f" and {len(found) - limit} more" if len(found) > limit else ""
    return " or ".join(found[:limit]) + rest
