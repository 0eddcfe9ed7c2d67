"""A certificate in plain words: what is claimed, why nothing can be better, and how near the plan comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.ir.certificate import Busiest, Certificate
from reshard_planner.ir.plan import Plan
from reshard_planner.render.binding import bound_sentence
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_s, plain
from reshard_planner.topology import Ports

NEAR = 0.05
"""Gap of the busiest port up to which a plan counts as near the bound: start-ups and waiting, which no choice
of ports avoids, cost a run more than that."""

GLOSSARY = {
    "P*": "least payload: the bytes that every plan must move over the network",
    "T*": (
        "bound: the least time of any plan of least payload, if every link ran at its full datasheet rate"
        " without start-up"
    ),
    "T0": "the same for ranks that hold or need the bytes only, which lend no NICs to others",
}
"""What the short names on a page stand for."""

UNITS = (
    "Sizes are binary, as in 1 GiB = 1.074 GB. Rates are decimal, as in datasheets: 1 GB/s is a thousand"
    " million bytes per second."
)
"""What units mean."""


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


def claims(plan: Plan, predicted_s: float | None = None, alike: Sequence[int] = ()) -> list[Claim]:
    """All claims of a plan that readers ask for first.

    Args:
        plan: the plan.
        predicted_s: predicted time of a run, in seconds; None without a prediction.
        alike: domains that bind as much as the one of the bound's cut does.
    """
    certificate = plan.certificate
    return [
        _payload(certificate),
        _bound(plan, alike),
        _load(certificate) if predicted_s is None else _predicted(certificate, predicted_s),
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
        f"No plan can move less than {format_nbytes(least)} (P*): a domain that needs bytes which none of its"
        " GPUs holds must take them in over the network, once."
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


def _bound(plan: Plan, alike: Sequence[int]) -> Claim:
    bound = plan.certificate.bound
    text = bound_sentence(bound, Ports.of(plan.spec.topology, plan.ranks).nic_name)
    if alike:
        others = f"domains {format_ranks(alike)} need" if len(alike) > 1 else f"domain {alike[0]} needs"
        text += f" It is one of {len(alike) + 1} alike: {others} as long."
    if bound.t0_s > bound.time_s:
        text += (
            f" Without lending NICs, when only ranks that hold or need bytes take part, the least is"
            f" {format_s(bound.t0_s)} (T0)."
        )
    return Claim("Bound T*", format_s(bound.time_s), None, text)


def _predicted(certificate: Certificate, predicted_s: float) -> Claim:
    """The time of a run, and why it is not the bound."""
    bound_s, busiest = certificate.bound.time_s, _busiest(certificate)
    if not busiest.nbytes:
        text = "Nothing moves between ranks."
        return Claim("Predicted time", format_s(predicted_s), None, text)
    value, beyond = format_s(predicted_s), ""
    if bound_s:
        value += f", {predicted_s / bound_s:.2f} \N{MULTIPLICATION SIGN} T*"
        beyond = f", {_distance(busiest.time_s / bound_s - 1)}"
    text = (
        "A run, message by message, with the latencies and efficiencies of the topology. The bytes of the"
        f" busiest port, {plain(busiest.resource, 80)}, take {format_s(busiest.time_s)} of it at the"
        f" datasheet rate{beyond}; the rest is what links fall short of their datasheets, start-ups, and"
        " waiting for others."
    )
    return Claim("Predicted time", value, None, text)


def _load(certificate: Certificate) -> Claim:
    """How far the load of the busiest port is above the bound, where nothing is known of a run."""
    busiest, title = _busiest(certificate), "Load of the busiest port"
    if not busiest.nbytes:
        return Claim(title, "none", None, "Nothing moves between ranks, so no port is used.")
    gap = certificate.gap
    text = (
        f"This compares bytes, not times of runs: {_port(busiest)} at its datasheet rate, and no port of the"
        " plan takes longer."
    )
    rest = [_port(port) for port in _ports(certificate) if port.nbytes and port is not busiest]
    if rest:
        text += f" Of the other kinds of ports the busiest are: {'; '.join(rest)}."
    text += " A run takes longer, as it starts messages and waits for others: report --simulate predicts it."
    if gap is None:
        return Claim(title, "above T*", good=False, text=f"T* is 0. {text}")
    if gap < 0:
        text += " T* bounds plans of least payload only; this one moves more, over faster ports."
    return Claim(title, _distance(gap), gap <= NEAR if gap >= 0 else None, text)


def _ports(certificate: Certificate) -> tuple[Busiest, ...]:
    return certificate.busiest_nic, certificate.busiest_nvlink, certificate.busiest_uplink


def _busiest(certificate: Certificate) -> Busiest:
    return max(_ports(certificate), key=lambda port: port.time_s)


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
        f" every slot takes as long as its busiest port, and {format_s(alpha_s)} to start, all take {value}"
    )
    text += "" if schedule.gap is None else f"; without starting, {_distance(schedule.gap)}"
    return Claim(
        "Schedule",
        value,
        None,
        f"{text}. A rank exchanges bytes with at most {format_count(schedule.peers_in_slot_max, 'other')} in"
        f" one slot, and with {schedule.peers_max:,} over all.",
    )


def _distance(gap: float) -> str:
    percent = f"{abs(gap) * 100:.1f} %"
    return "as long as T*" if percent == "0.0 %" else f"{percent} {'above' if gap >= 0 else 'below'} T*"


def _memory(certificate: Certificate) -> Claim:
    peers = certificate.peers
    return Claim(
        "Memory",
        format_nbytes(certificate.staging_nbytes),
        None,
        "Staging and scratch of the rank that needs most, beside the tensors themselves. Connections take"
        f" about {format_nbytes(peers.connection_nbytes)} more on the rank with most peers:"
        f" {peers.network_max:,} over the network, {peers.nvlink_max:,} over NVLink.",
    )
