"""A certificate in plain words: what is claimed, why nothing can be better, and how near the plan comes."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_planner.ir.certificate import BoundClaim, Busiest, Certificate
from reshard_planner.ir.plan import Plan
from reshard_planner.render.text import format_count, format_nbytes, format_rate, format_s, plain

WHY = {
    "domain_ingress": (
        "{resource} must take in {nbytes} that none of its GPUs holds, and all NICs of the domain together"
        " take {rate}."
    ),
    "egress": (
        "{nbytes} must leave {resource}, since nobody else has them at first, and all NICs there together"
        " emit {rate}."
    ),
    "pod_ingress": "{resource} must take in {nbytes} that no GPU in it holds, and its uplink takes {rate}.",
    "pod_egress": (
        "{nbytes} must leave {resource}, since no other pod has them at first, and the uplinks carry {rate}."
    ),
    "port_in": (
        "{resource} must take in {nbytes} over its NIC and its NVLink port, which take {rate} together."
    ),
    "nvlink_port_in": (
        "{resource} must take in {nbytes} that neighbours in its domain hold, over its NVLink port, which"
        " takes {rate}."
    ),
    "nvlink_port_out": (
        "{resource} alone in its domain holds {nbytes} that neighbours need, and its NVLink port emits"
        " {rate}."
    ),
    "nvlink_domain": (
        "the ranks of {resource} must receive {nbytes} over NVLink, and all their NVLink ports together take"
        " {rate}."
    ),
    "prices": (
        "with a price per byte on each of these ports ({resource}), the cheapest way for every byte costs"
        " {nbytes} by weight in all, and the ports together carry {rate} by weight."
    ),
}
"""Why nothing is faster than the bound, by the kind of the cut that binds."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a certificate.

    Attributes:
        title: what it is about.
        value: the figure.
        good: whether the plan does as well as can be; None where that is no question.
        text: sentences on it.
    """

    title: str
    value: str
    good: bool | None
    text: str


def claims(plan: Plan) -> list[Claim]:
    """All claims of a plan that readers ask for first."""
    certificate = plan.certificate
    return [
        _payload(certificate),
        _bound(certificate.bound),
        _gap(certificate),
        _schedule(plan),
        _memory(certificate),
    ]


def _payload(certificate: Certificate) -> Claim:
    payload = certificate.payload
    least, moved = payload.minimum_network_nbytes, payload.network_nbytes
    value = format_nbytes(moved)
    if not least and not moved:
        return Claim("Payload", value, good=True, text="No bytes have to cross the network, and none do.")
    why = (
        f"No plan can move less than {format_nbytes(least)}: a domain that needs bytes which none of its GPUs"
        " holds must take them in over the network, once."
    )
    if moved == least:
        text = f"The plan moves {value} over the network, the least possible. {why}"
    elif moved < least:
        text = (
            f"The plan claims to move {value}, which is below the least possible and cannot be right. {why}"
        )
    else:
        times = f"{moved / least:.2f} times the least possible" if least else "though none would have to"
        text = f"The plan moves {value} over the network, {times}. {why}"
    inside = f" Within domains {format_nbytes(payload.nvlink_nbytes)} go over NVLink"
    if payload.local_nbytes:
        inside += f", and {format_nbytes(payload.local_nbytes)} are copied within ranks"
    return Claim("Payload", value, moved == least, f"{text}{inside}.")


def _bound(bound: BoundClaim) -> Claim:
    value = format_s(bound.time_s)
    if not bound.cut_nbytes:
        return Claim(
            "Bound T*", value, None, "No bytes have to leave a rank, so a run need not take any time."
        )
    why = WHY.get(bound.term, "{nbytes} must pass {resource}, at {rate}.").format(
        resource=plain(bound.resource, 80),
        nbytes=format_nbytes(bound.cut_nbytes),
        rate=format_rate(bound.cut_bytes_per_s),
    )
    text = f"No plan that moves this little can be faster than {value}, because one cut binds: {why}"
    if bound.t0_s > bound.time_s:
        text += (
            f" Without lending NICs, when only ranks that hold or need bytes take part, the least is"
            f" {format_s(bound.t0_s)} (T0)."
        )
    return Claim("Bound T*", value, None, text)


def _gap(certificate: Certificate) -> Claim:
    ports = (certificate.busiest_nic, certificate.busiest_nvlink, certificate.busiest_uplink)
    busiest = max(ports, key=lambda port: port.time_s)
    gap, used = certificate.gap, [port for port in ports if port.nbytes]
    if not busiest.nbytes:
        return Claim("Busiest port", "none", None, "Nothing moves between ranks, so no port is used.")
    text = f"{_port(busiest)} at its datasheet rate; no port of the plan takes longer."
    rest = [_port(port) for port in used if port is not busiest]
    if rest:
        text += f" Of the other kinds of ports the busiest are: {'; '.join(rest)}."
    if gap is None:
        return Claim("Gap to T*", "above T*", good=False, text=f"T* is 0. {text}")
    if gap < 0:
        text += " T* bounds plans of least payload only; this one moves more, over faster ports."
    return Claim("Gap to T*", f"{gap:+.1%}", gap <= 0.05 if gap >= 0 else None, text)


def _port(port: Busiest) -> str:
    return (
        f"{plain(port.resource, 80)}, carries {format_nbytes(port.nbytes)}, which takes"
        f" {format_s(port.time_s)}"
    )


def _schedule(plan: Plan) -> Claim:
    schedule, alpha_s = plan.certificate.schedule, plan.spec.topology.alpha_s
    value = format_s(schedule.time_s)
    if not schedule.messages:
        return Claim("Schedule", value, None, "There are no messages to schedule.")
    text = (
        f"{format_count(schedule.messages, 'message')} run in {format_count(schedule.slots, 'slot')}. If"
        f" every slot"
        f" takes as long as its busiest port, and {format_s(alpha_s)} to start, all take {value}"
    )
    text += "" if schedule.gap is None else f"; without starting, {_distance(schedule.gap)}"
    return Claim(
        "Schedule",
        value,
        None,
        f"{text}. A rank exchanges bytes with at most {format_count(schedule.peers_in_slot_max, 'other')} in"
        f" one slot,"
        f" and with {schedule.peers_max:,} over all.",
    )


def _distance(gap: float) -> str:
    return f"{abs(gap):.1%} {'above' if gap >= 0 else 'below'} T*"


def _memory(certificate: Certificate) -> Claim:
    peers = certificate.peers
    return Claim(
        "Memory",
        format_nbytes(certificate.staging_nbytes),
        None,
        "Staging and scratch of the rank that needs most, beside the tensors themselves. Connections take"
        " about"
        f" {format_nbytes(peers.connection_nbytes)} more on the rank with most peers: {peers.network_max:,}"
        f" over the"
        f" network, {peers.nvlink_max:,} over NVLink.",
    )
