"""A whole model and its plan, as text: what it is made of, what is moved, what others would refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshard_planner.ir.certificate import Certificate, Payload
from reshard_planner.models.coverage import SideCoverage
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.roles import FEED_FORWARD, KINDS, OTHERS, kind_of
from reshard_planner.render.text import align, format_count, format_rate, plain
from reshard_planner.topology import Topology

LONG_SCHEDULE = 1.0
"""Gap of a schedule to T* from which on it is warned of."""

TB_FROM = 10**13
"""Bytes from which on sizes are given in TB: models are compared in GB."""


def format_gb(nbytes: int) -> str:
    """A number of bytes in powers of 1000, as the sizes of models are given.

    >>> format_gb(1_342_052_900_000), format_gb(11_118_000_000_000)
    ('1,342.1 GB', '11.12 TB')
    """
    if nbytes >= TB_FROM:
        return f"{nbytes / 1e12:,.2f} TB"
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes} B"


def format_elements(count: int) -> str:
    """A number of parameters as people say it.

    >>> format_elements(235_093_634_560), format_elements(2772)
    ('235.1 billion parameters', '2,772 parameters')
    """
    for scale, word in ((1e9, "billion"), (1e6, "million")):
        if count >= scale:
            return f"{count / scale:,.1f} {word} parameters"
    return format_count(count, "parameter")


def by_kind(model: Model) -> dict[str, list[Parameter]]:
    """Parameters by kind, in the order of the kinds; those of models without roles are all in the last."""
    found: dict[str, list[Parameter]] = {kind: [] for kind in (*KINDS, OTHERS)}
    for parameter in model.parameters:
        found[kind_of(parameter.role)].append(parameter)
    return {kind: own for kind, own in found.items() if own}


def feed_forward_share(model: Model) -> float:
    """Share of the bytes that hybrid refits reshard: feed-forward projections but for shared experts."""
    total = sum(each.nbytes for each in model.parameters)
    own = sum(each.nbytes for each in model.parameters if each.role in FEED_FORWARD)
    return own / total if total else 0.0


def inventory(model: Model) -> str:
    """A table of the parameters by kind, with their sum, and notes on what was assumed or left out."""
    total = max(1, model.nbytes)
    rows = [("kind", "tensors", "parameters", "size", "share")]
    for kind, own in by_kind(model).items():
        nbytes = sum(each.nbytes for each in own)
        rows.append(
            (
                kind,
                f"{sum(each.tensors for each in own):,}",
                f"{sum(each.elements for each in own):,}",
                format_gb(nbytes),
                f"{100 * nbytes / total:.1f} %",
            )
        )
    tensors = f"{sum(each.tensors for each in model.parameters):,}"
    rows.append(("all", tensors, f"{model.elements:,}", format_gb(model.nbytes), "100.0 %"))
    notes = [f"  note: {plain(note, 300)}" for note in model.notes]
    return "\n".join([align(rows), *notes])


def logical(model: Model) -> str:
    """What crosses between training and serving if nothing is copied, by NVIDIA's counting."""
    both, once = format_gb(2 * model.nbytes), format_gb(model.nbytes)
    return f"logical payload: gather and broadcast {both}, each weight gathered and then sent; reshard {once}"


def coverage(before: SideCoverage, after: SideCoverage) -> str:
    """Whether every byte is planned, and what is padding."""
    lines = []
    for word, side in (("held before", before), ("needed after", after)):
        what = "every byte" if side.covered_nbytes == side.nbytes else "NOT every byte"
        lines.append(
            f"{word}: {what}, {format_gb(side.covered_nbytes)} of {format_gb(side.nbytes)};"
            f" {format_gb(side.stored_nbytes)} with copies, and {format_gb(side.padding_nbytes)} of padding"
        )
    return "\n".join(lines)


def moved(payload: Payload) -> str:
    """What the plan moves over the network, beside the least."""
    least = payload.minimum_network_nbytes
    beside = (
        "the least that is possible" if payload.network_nbytes == least else f"at least {format_gb(least)}"
    )
    return f"this plan: {format_gb(payload.network_nbytes)} over the network, {beside}"


def domains(topology: Topology) -> str:
    """How many domains of how many GPUs there are, with the rates of their ports."""
    sizes = sorted({len(domain.gpus) for domain in topology.domains})
    many = format_count(len(topology.domains), "domain")
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    nics = sorted({nic.link.bytes_per_s for nic in topology.nics})
    nvlinks = sorted({domain.link.bytes_per_s for domain in topology.domains})
    rates = [
        f"{word} {' to '.join(dict.fromkeys(format_rate(each) for each in (found[0], found[-1])))}"
        for word, found in (("NIC", nics), ("NVLink", nvlinks))
        if found
    ]
    return f"{many} of {size} GPUs, {', '.join(rates)}"


def warnings(certificate: Certificate) -> list[str]:
    """What a reader of a plan should not miss."""
    gap = certificate.schedule.gap
    if gap is None or gap <= LONG_SCHEDULE:
        return []
    slow = f"the slots of this schedule take {1 + gap:.1f} x T* together"
    return [f"warning: {slow}; more staging or groups of other sizes may do better"]


def refusals(reasons: Mapping[str, Sequence[Parameter]], model: Model) -> str:
    """What NCCL M2N, NVIDIA's reshard between two meshes, would refuse, by reason, with an example each."""
    refused = [parameter for own in reasons.values() for parameter in own]
    if not refused:
        return "NCCL M2N would refuse nothing"
    nbytes = sum(parameter.nbytes for parameter in refused)
    many = f"{len(refused):,} of {format_count(len(model.parameters), 'parameter')}"
    lines = [f"NCCL M2N would refuse {many}, {format_gb(nbytes)}:"]
    for reason, own in sorted(reasons.items(), key=lambda each: -len(each[1])):
        lines.append(f"  {len(own):,}, such as {plain(own[0].name)}: {reason}")
    return "\n".join(lines)
