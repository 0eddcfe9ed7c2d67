"""The picture of a plan's transfers, as graphviz DOT.

Domains are clusters with a node per rank. An edge stands for all transfers of one medium and role from one
rank to another; what that is shows in its text and its line, not in its colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import graphviz

from reshard_planner.ir.plan import Plan
from reshard_planner.render.dot import (
    BLUE,
    FAINT,
    GREEN,
    PURPLE,
    VERMILLION,
    dot_text,
    html_text,
    new_graph,
)
from reshard_planner.render.flows import Flow, Flows, Place, find_flows
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_shape, plain
from reshard_planner.transfer import Medium, Role

MAX_TEXTS = 64
"""Edges above which their texts would hide one another: sums at the nodes and tooltips replace them."""


@dataclass(frozen=True, slots=True)
class Line:
    """How flows of one medium and role are drawn.

    Attributes:
        name: what their text says.
        meaning: what the legend says.
        style: graphviz edge style.
        colour: of the line.
        ink: darker shade of it, for text.
        arrow: graphviz arrow shape.
        double: whether two lines run side by side.
    """

    name: str
    meaning: str
    style: str
    colour: str
    ink: str
    arrow: str = "normal"
    double: bool = False


LINES: dict[tuple[int, int], Line] = {
    (Medium.NETWORK, Role.INJECT): Line(
        "inject", "network: a rank that holds the bytes sends them from its NIC", "solid", BLUE, "#00507D"
    ),
    (Medium.NETWORK, Role.RELAY): Line(
        "relay", "network: a rank forwards bytes that it received", "dashed", VERMILLION, "#954200", "vee"
    ),
    (Medium.NVLINK, Role.FANOUT): Line(
        "fan-out", "NVLink: between ranks of one domain", "dotted", GREEN, "#006B4F", "empty"
    ),
    (Medium.NVLINK, Role.HANDOFF): Line(
        "handoff", "NVLink: to or from a rank that lends its NIC", "solid", PURPLE, "#8A3D6A", double=True
    ),
}
"""Lines by medium and role."""


def transfers_dot(plan: Plan, tensor: str | None = None) -> str:
    """Draw the transfers of a plan.

    Transfers are added up over pieces, tensors and units. Above about 300 edges ranks are added up by domain,
    and domains that are alike are joined. Nodes and edges carry a stable ``id``, a ``class``, a tooltip and,
    for programs, attributes with exact sums: ``transfers`` and ``nbytes`` on edges, ``local_nbytes``,
    ``nvlink_nbytes`` and ``network_nbytes`` on nodes for what stays within them.

    Args:
        plan: the plan.
        tensor: name of the one tensor to draw; all of them when None.

    Returns:
        DOT text, the same for the same plan.

    Raises:
        InputError: if the plan has no such tensor.
    """
    chosen = None if tensor is None else [plan.spec.tensors.index(plan.spec.tensor(tensor))]
    flows = find_flows(plan, chosen)
    edges = [flow for flow in flows.flows if flow.src != flow.dst]
    crowded = len(edges) > MAX_TEXTS
    graph = new_graph(
        "transfers",
        label=_heading(plan, chosen, flows, crowded=crowded),
        labelloc="t",
        labeljust="l",
        ranksep="3" if crowded else "1.1",
        nodesep="0.3",
        mclimit="0.001",  # keeps ranks in the order given, at the price of a few crossings
        tooltip=dot_text(f"plan {plan.digest}"),
    )
    _add_places(graph, plan, flows, crowded=crowded)
    for flow in edges:
        _add_edge(graph, flows, flow, crowded=crowded)
    return str(graph.source)


def _line(flow: Flow) -> Line:
    """How a flow is drawn; a pair of medium and role that no right plan has is drawn all the same."""
    other = Line(_kind(flow), "no transfer of a right plan", "bold", "#000000", "#000000", "box")
    return LINES.get((flow.medium, flow.role), other)


def _kind(flow: Flow) -> str:
    """Medium and role in words, or as numbers where a broken plan has unknown ones."""
    medium = Medium(flow.medium).label if flow.medium in set(Medium) else f"medium{flow.medium}"
    role = Role(flow.role).label if flow.role in set(Role) else f"role{flow.role}"
    return f"{medium} {role}"


def _add_places(graph: graphviz.Digraph, plan: Plan, flows: Flows, *, crowded: bool) -> None:
    by_domain: dict[int, list[int]] = {}
    for number, place in enumerate(flows.places):
        by_domain.setdefault(place.domains[0], []).append(number)
    for domain, numbers in sorted(by_domain.items()):
        if not flows.by_rank:
            for number in numbers:
                _add_node(graph, plan, flows, number, crowded=crowded)
            continue
        with graph.subgraph(name=f"cluster_domain_{domain}") as cluster:
            cluster.attr(
                label=dot_text(f"domain {domain}"),
                labeljust="l",
                id=f"domain_{domain}",
                style="rounded,filled",
                fillcolor="#F4F4F4",
                color=FAINT,
                margin="18",
                tooltip=dot_text(f"domain {domain}: {format_count(len(numbers), 'rank')} drawn"),
                **{"class": "domain"},
            )
            for number in numbers:
                _add_node(cluster, plan, flows, number, crowded=crowded)


def _add_node(graph: graphviz.Digraph, plan: Plan, flows: Flows, number: int, *, crowded: bool) -> None:
    """Add a node: with a thick square frame where it holds, a thin rounded one where it does not."""
    place = flows.places[number]
    touching = [flow for flow in flows.flows if number in (flow.src, flow.dst)]
    inside = [flow for flow in touching if flow.src == flow.dst]
    lines, tooltip = _naming(plan, flows, place)
    words = [word for word, applies in (("holds", place.holds), ("needs", place.needs)) if applies]
    lines.append(", ".join(words) or ("helps" if touching else "stores nothing"))
    lines.extend(f"within: {_amount([flow])}" for flow in inside if flow.medium != Medium.LOCAL)
    copied = sum(flow.nbytes for flow in inside if flow.medium == Medium.LOCAL)
    if copied:
        lines.append(f"copies {format_nbytes(copied)}")
    if crowded:
        sent = [flow for flow in touching if flow.dst != number]
        received = [flow for flow in touching if flow.src != number]
        sides = (("sends", sent), ("gets", received))
        lines.extend(f"{verb} {_amount(part)}" for verb, part in sides if part)
    tooltip.extend(_describe(flow) for flow in inside)
    sums = {medium: sum(flow.nbytes for flow in inside if flow.medium == medium) for medium in Medium}
    graph.node(
        _name(flows, number),
        label=dot_text(*lines),
        shape="box",
        style="filled" if place.holds else "rounded,filled",
        penwidth="2" if place.holds else "1",
        fillcolor="white",
        tooltip=dot_text(*tooltip),
        id=_name(flows, number),
        **{"class": "rank" if flows.by_rank else "domains"},
        **{f"{medium.label}_nbytes": str(total) for medium, total in sums.items() if total},
    )


def _naming(plan: Plan, flows: Flows, place: Place) -> tuple[list[str], list[str]]:
    """First lines of a node's text and of its tooltip."""
    if flows.by_rank:
        rank = place.ranks[0]
        gpu = plan.spec.topology.gpu_of(rank)
        lines = [f"rank {rank}"] if gpu == rank else [f"rank {rank}", f"GPU {gpu}"]
        return lines, [f"rank {rank}, GPU {gpu}, domain {place.domains[0]}"]
    noun = "domain" if len(place.domains) == 1 else "domains"
    ranks = format_count(len(place.ranks), "rank")
    return [f"{noun} {format_ranks(place.domains)}", f"{ranks}: {format_ranks(place.ranks)}"], [
        f"{noun} {format_ranks(place.domains, 200)}",
        f"{ranks}: {format_ranks(place.ranks, 200)}",
    ]


def _name(flows: Flows, number: int) -> str:
    """Name of a node; joined domains are named by the first of them."""
    place = flows.places[number]
    return f"rank_{place.ranks[0]}" if flows.by_rank else f"domain_{place.domains[0]}"


def _amount(flows: Sequence[Flow]) -> str:
    """Number of transfers, their role and their bytes: ``2 inject, 64 KiB``."""
    names = "/".join(dict.fromkeys(_line(flow).name for flow in flows))
    count = sum(flow.count for flow in flows)
    return f"{count:,} {names}, {format_nbytes(sum(flow.nbytes for flow in flows))}"


def _describe(flow: Flow) -> str:
    return f"{_kind(flow)}: {format_count(flow.count, 'transfer')}, {flow.nbytes:,} bytes"


def _add_edge(graph: graphviz.Digraph, flows: Flows, flow: Flow, *, crowded: bool) -> None:
    line = _line(flow)
    src, dst = _name(flows, flow.src), _name(flows, flow.dst)
    ends = f"{src} to {dst}".replace("_", " ")
    text = {"label": dot_text(_amount([flow])), "labeltooltip": dot_text(ends, _describe(flow))}
    graph.edge(
        src,
        dst,
        style=line.style,
        color=f"{line.colour}:white:{line.colour}" if line.double else line.colour,
        fontcolor=line.ink,
        arrowhead=line.arrow,
        arrowsize="0.6" if crowded else "0.9",
        penwidth="0.8" if crowded else "1.6",
        tooltip=dot_text(ends, _describe(flow)),
        id=f"{src}_to_{dst}_{_kind(flow).replace(' ', '_')}",
        transfers=str(flow.count),
        nbytes=str(flow.nbytes),
        **({} if crowded else text),
        **{"class": _kind(flow)},
    )


def _heading(plan: Plan, chosen: Sequence[int] | None, flows: Flows, *, crowded: bool) -> str:
    """What is drawn, the sums, and the legend, as an HTML-like label."""
    members = plan.spec.tensors if chosen is None else [plan.spec.tensors[at] for at in chosen]
    size = format_nbytes(sum(member.nbytes for member in members))
    what = f"{format_count(len(members), 'tensor')}, {size}"
    if len(members) == 1:
        what = f"{plain(members[0].name)}: {format_shape(members[0].shape)} {members[0].dtype}, {size}"
    total = {medium: sum(flow.nbytes for flow in flows.flows if flow.medium == medium) for medium in Medium}
    least = ""
    if chosen is None:
        least = f" (least possible: {format_nbytes(plan.certificate.payload.minimum_network_nbytes)})"
    moved = (
        f"network {format_nbytes(total[Medium.NETWORK])}{least},"
        f" NVLink {format_nbytes(total[Medium.NVLINK])},"
        f" copies within ranks {format_nbytes(total[Medium.LOCAL])}"
    )
    rows = [
        f'<FONT POINT-SIZE="16">{html_text(f"Transfers of {what}")}</FONT>',
        f'<FONT POINT-SIZE="12">{html_text(f"strategy {plain(plan.spec.options.strategy)}: {moved}")}</FONT>',
        _samples([_line(flow) for flow in flows.flows if flow.medium != Medium.LOCAL]),
        *(f'<FONT POINT-SIZE="11">{html_text(note)}</FONT>' for note in _notes(flows, crowded=crowded)),
    ]
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows if row)
    return f'<<TABLE ID="legend" BORDER="0" CELLSPACING="0" CELLPADDING="2">{cells}</TABLE>>'


def _samples(lines: Sequence[Line]) -> str:
    """A table of the kinds of lines that occur; empty if none does."""
    rows = "".join(_sample(line) for line in dict.fromkeys([*LINES.values(), *lines]) if line in lines)
    return f'<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="2">{rows}</TABLE>' if rows else ""


def _sample(line: Line) -> str:
    """One kind of line, drawn as the frame of an empty cell between two others, and its meaning."""
    sides = "TB" if line.double else "T"
    style = "" if line.style in ("solid", "bold") else f' STYLE="{line.style.upper()}"'
    texts = "".join(
        f'<TD ALIGN="LEFT"><FONT POINT-SIZE="11">{text}</FONT></TD>'
        for text in (f"<B>{html_text(line.name)}</B>", html_text(line.meaning))
    )
    space = '<FONT POINT-SIZE="2"> </FONT>'
    blank = f'<TR><TD BORDER="0">{space}</TD></TR>'
    drawn = f'<TR><TD SIDES="{sides}" COLOR="{line.colour}" WIDTH="46"{style}>{space}</TD></TR>'
    return (
        '<TR><TD><TABLE BORDER="0" CELLBORDER="2" CELLSPACING="0" CELLPADDING="0">'
        f"{blank}{drawn}{blank}</TABLE></TD>{texts}</TR>"
    )


def _notes(flows: Flows, *, crowded: bool) -> Iterable[str]:
    """What the texts mean and what is left out."""
    if crowded:
        yield "At the nodes: transfers, their roles, and their bytes together (1 KiB = 1024 B)."
    elif any(flow.src != flow.dst for flow in flows.flows):
        yield "On the lines: number of transfers, their role, and their bytes together (1 KiB = 1024 B)."
    else:
        yield "No bytes go from one node to another. 1 KiB = 1024 B."
    yield "holds (thick frame): has bytes of the tensors before. needs: must have some after."
    if any(flow.medium == Medium.LOCAL for flow in flows.flows):
        yield "copies: bytes that a rank moves from one of its own buffers to another."
    if not flows.by_rank:
        yield f"Added up by domain: {format_count(flows.pairs, 'line')} between ranks would be too many."
    if flows.idle:
        where = (
            f", among them {format_count(flows.idle_domains, 'whole domain')}" if flows.idle_domains else ""
        )
        yield f"Not drawn: {format_count(len(flows.idle), 'rank')} without transfers{where}."
