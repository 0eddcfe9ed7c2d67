"""What binds a whole plan, and how much of it is one tensor, in words."""

from __future__ import annotations

from reshard_planner.render.binding import bound_sentence
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.text import format_nbytes, format_s

SAME = 0.0005
"""Share of T* that a time may be above it to pass for equal."""


def binding_sentences(facts: Facts) -> list[str]:
    """What binds the whole plan, how much of it is the tensor, and which ports are busiest in this plan."""
    claims = facts.plan.certificate
    found = [bound_sentence(claims.bound, facts.ports.nic_name)]
    total = claims.bound.cut_nbytes
    if total:
        own = facts.cut_nbytes()
        found.append(
            f"Of these bytes {format_nbytes(own)}, {_share(own / total)}, are of this tensor."
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


def _share(share: float) -> str:
    return f"{share * 100:.3g} %" if share >= 1e-5 else "less than 0.001 %"


def _gap(gap: float | None, *, several: bool) -> str:
    """The longest time of some ports beside T*."""
    which = "the longest of these times is" if several else "that is"
    if gap is None:
        return f"{which} not 0 s, as T* is"
    if gap < 0:
        return f"{which} {-gap * 100:.1f} % below T*, which bounds plans of least payload only"
    if gap < SAME:
        return "by its busiest port this plan reaches T*"
    if gap >= 1:
        return f"{which} {1 + gap:.2f} times T*"
    return f"{which} {gap * 100:.1f} % above T*"
