"""The picture of a plan's transfers, as graphviz DOT.

Domains are clusters with a node per rank and, where there is room, one per NIC. What only sends stands to
the left, what only receives to the right. An edge stands for all transfers of one medium and role from one
rank to another; what that is shows in its text and its line, not in its colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import graphviz

from reshard_planner.ir.plan import Plan
from reshard_planner.render.dot import FAINT, dot_lines, dot_text, new_graph
from reshard_planner.render.hops.choice import choose
from reshard_planner.render.hops.flows import Flow, Place
from reshard_planner.render.hops.lines import amount_of, describe, kind_of, legend, line_of
from reshard_planner.render.hops.nics import Nics
from reshard_planner.render.hops.scene import Scene, set_scene
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_shape, plain
from reshard_planner.transfer import Medium

MIN_PENWIDTH, MAX_PENWIDTH = 0.9, 2.2
"""Width of a line of hardly any bytes and of that of most bytes, in points."""


def transfers_dot(
    plan: Plan,
    tensor: str | None = None,
    *,
    rank: int | None = None,
    klass: int | None = None,
    tree: int | None = None,
) -> str:
    """Draw the transfers of a plan, or some of them.

    Transfers are added up over pieces, tensors and units. Above about a hundred edges ranks are added up by
    domain, and domains that are alike are joined. Nodes and edges carry a stable ``id``, a ``class``, a
    tooltip and, for programs, attributes with exact sums: ``transfers`` and ``nbytes`` on edges,
    ``local_nbytes``, ``nvlink_nbytes`` and ``network_nbytes`` on nodes for what stays within them.

    Args:
        plan: the plan.
        tensor: name of the one tensor to draw; all of them when None.
        rank: draw only what this rank sends or receives.
        klass: draw only what brings bytes of this class of the tensor, numbered from 0 as by
            :func:`reshard_planner.atoms.find_atoms`.
        tree: draw only the tree that carries the piece of this number, with slots.

    Returns:
        DOT text without HTML-like labels, the same for the same plan.

    Raises:
        InputError: if the plan has no such tensor, rank, class or tree, or a class or tree is asked for
            without saying of which tensor.
    """
    scene = set_scene(plan, choose(plan, tensor, rank=rank, klass=klass, tree=tree))
    graph = new_graph(
        "transfers",
        label=dot_lines(*_heading(scene)),
        labelloc="t",
        labeljust="l",
        fontsize="12",
        newrank="true",  # columns go through clusters
        ranksep="3" if scene.crowded else "0.7" if scene.nics else "1.1",
        nodesep="0.3",
        tooltip=dot_text(f"plan {plan.digest}"),
    )
    _add_places(graph, scene)
    _add_columns(graph, scene)
    _add_ports(graph, scene)
    for flow in scene.edges:
        _add_edge(graph, scene, flow)
    return str(graph.source)


def _add_places(graph: graphviz.Digraph, scene: Scene) -> None:
    by_domain: dict[int, list[int]] = {}
    for number, place in enumerate(scene.flows.places):
        by_domain.setdefault(place.domains[0], []).append(number)
    for domain, numbers in sorted(by_domain.items()):
        if not scene.flows.by_rank:
            for number in numbers:
                _add_node(graph, scene, number)
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
                _add_node(cluster, scene, number)
            for nic in scene.nics.inside(numbers):
                _add_nic(cluster, scene.nics, nic)


def _add_node(graph: graphviz.Digraph, scene: Scene, number: int) -> None:
    """Add a node: with a thick square frame where it holds, a thin rounded one where it does not."""
    place = scene.flows.places[number]
    touching = [flow for flow in scene.flows.flows if number in (flow.src, flow.dst)]
    inside = [flow for flow in touching if flow.src == flow.dst]
    lines, tooltip = _naming(scene, place)
    words = [word for word, applies in (("holds", place.holds), ("needs", place.needs)) if applies]
    lines.append(", ".join(words) or ("helps" if touching else "stores nothing"))
    lines.extend(f"within: {amount_of([flow])}" for flow in inside if flow.medium != Medium.LOCAL)
    copied = sum(flow.nbytes for flow in inside if flow.medium == Medium.LOCAL)
    if copied:
        lines.append(f"copies {format_nbytes(copied)}")
    lines.extend(_sums(scene, number, [flow for flow in touching if flow.src != flow.dst]))
    tooltip.extend(describe(flow) for flow in inside)
    sums = {medium: sum(flow.nbytes for flow in inside if flow.medium == medium) for medium in Medium}
    graph.node(
        scene.name(number),
        label=dot_text(*lines),
        shape="box",
        style="filled" if place.holds else "rounded,filled",
        penwidth="2" if place.holds else "1",
        fillcolor="white",
        tooltip=dot_text(*tooltip),
        id=scene.name(number),
        **{"class": "domains" if scene.name(number).startswith("domain") else "rank"},
        **{f"{medium.label}_nbytes": str(total) for medium, total in sums.items() if total},
    )


def _naming(scene: Scene, place: Place) -> tuple[list[str], list[str]]:
    """First lines of a node's text and of its tooltip."""
    if scene.flows.by_rank or place.alone:
        rank = place.ranks[0]
        gpu = scene.plan.spec.topology.gpu_of(rank)
        lines = [f"rank {rank}"] if gpu == rank else [f"rank {rank}", f"GPU {gpu}"]
        if place.alone:
            lines.append(f"in domain {place.domains[0]}")
        return lines, [f"rank {rank}, GPU {gpu}, domain {place.domains[0]}"]
    noun = "domain" if len(place.domains) == 1 else "domains"
    ranks = format_count(len(place.ranks), "rank")
    return [f"{noun} {format_ranks(place.domains)}", f"{ranks}: {format_ranks(place.ranks)}"], [
        f"{noun} {format_ranks(place.domains, 200)}",
        f"{ranks}: {format_ranks(place.ranks, 200)}",
    ]


def _sums(scene: Scene, number: int, touching: Sequence[Flow]) -> Iterator[str]:
    """What a node says of its edges that have no text themselves, and whose NIC does not say it."""
    sent = [flow for flow in touching if flow.src == number]
    received = [flow for flow in touching if flow.dst == number]
    for side, flows in (("out", sent), ("in", received)):
        if scene.crowded:
            if flows:
                yield f"{'sends' if side == 'out' else 'gets'} {amount_of(flows)}"
            continue
        for name in dict.fromkeys(line_of(flow).name for flow in flows):
            alike = [flow for flow in flows if line_of(flow).name == name and scene.upright(flow)]
            if alike and scene.name(number) in {end for flow in alike for end in scene.ends(flow)}:
                yield f"{name} {side} {format_nbytes(sum(flow.nbytes for flow in alike))}"


def _add_nic(graph: graphviz.Digraph, nics: Nics, nic: int) -> None:
    """Add a NIC, or several that the same GPUs share, with the bytes through it."""
    sides = ((verb, nbytes) for verb, nbytes in (("out", nics.out[nic]), ("in", nics.into[nic])) if nbytes)
    lines = [nics.names[nic], *(f"{verb} {format_nbytes(nbytes)}" for verb, nbytes in sides)]
    tooltip = (nics.names[nic], f"out {nics.out[nic]:,} bytes, in {nics.into[nic]:,} bytes", nics.rates[nic])
    graph.node(
        f"nic_{nic}",
        label=dot_text(*lines),
        shape="box",
        style="filled",
        fillcolor="#DCE4EC",
        fontsize="9",
        margin="0.06,0.03",
        tooltip=dot_text(*tooltip),
        id=f"nic_{nic}",
        **{"class": "nic"},
    )


def _add_columns(graph: graphviz.Digraph, scene: Scene) -> None:
    """Nodes of a column stand below one another, and columns side by side; unseen edges see to the order."""
    by_column: dict[int, list[str]] = {}
    for name in scene.order:
        by_column.setdefault(scene.columns[name], []).append(name)
    used = [names for _, names in sorted(by_column.items())]
    unseen = {"style": "invis", "class": "order"}
    for names in used:
        with graph.subgraph() as column:
            column.attr(rank="same")
            for name in names:
                column.node(name)
            for above, below in pairwise(names):
                column.edge(above, below, **unseen)
    for left, right in pairwise(used):
        graph.edge(left[0], right[0], **unseen)


def _add_ports(graph: graphviz.Digraph, scene: Scene) -> None:
    """Join ranks with their NICs, with arrows the way that bytes go."""
    nics = scene.nics
    for number, nic in nics.of_place.items():
        rank, port = scene.name(number), f"nic_{nic}"
        out, into = nics.sent[number], nics.received[number]
        outward = scene.order[rank] < scene.order[port] if scene.order else not into
        graph.edge(
            *((rank, port) if outward else (port, rank)),
            dir="both" if out and into else "forward" if bool(out) == outward else "back",
            arrowhead="open",
            arrowtail="open",
            arrowsize="0.5",
            penwidth="1",
            tooltip=dot_text(
                f"rank {rank[5:]} and {nics.names[nic]}", f"out {out:,} bytes, in {into:,} bytes"
            ),
            id=f"{rank}_and_{port}",
            **{"class": "port"},
        )


def _add_edge(graph: graphviz.Digraph, scene: Scene, flow: Flow) -> None:
    """Add an edge, drawn from left to right and downwards whichever way its arrow points.

    Graphviz would else move the nodes. Between nodes of a column it puts texts upon one another: the nodes
    have them.
    """
    line = line_of(flow)
    src, dst = scene.name(flow.src), scene.name(flow.dst)
    tail, head = scene.ends(flow)
    backward = bool(scene.order) and scene.order[tail] > scene.order[head]
    tooltip = dot_text(f"{src} to {dst}".replace("_", " "), describe(flow))
    words = [amount_of([flow]), *([f"slot +{flow.offset}"] if scene.choice.one_tree else [])]
    texts = {"label": dot_text(*words), "labeltooltip": tooltip}
    most = max(each.nbytes for each in scene.edges) or 1
    width = MIN_PENWIDTH + (MAX_PENWIDTH - MIN_PENWIDTH) * flow.nbytes / most
    graph.edge(
        *((head, tail) if backward else (tail, head)),
        dir="back" if backward else "forward",
        style=line.style,
        color=f"{line.colour}:white:{line.colour}" if line.double else line.colour,
        fontcolor=line.ink,
        arrowhead=line.arrow,
        arrowtail=line.arrow,
        arrowsize="0.8",
        penwidth=f"{max(MIN_PENWIDTH, width / 2) if scene.crowded else width:.1f}",
        tooltip=tooltip,
        id=f"{src}_to_{dst}_{kind_of(flow).replace(' ', '_')}",
        transfers=str(flow.count),
        nbytes=str(flow.nbytes),
        **({} if scene.crowded or scene.upright(flow) else texts),
        **{"class": kind_of(flow)},
    )


def _heading(scene: Scene) -> Iterator[str]:
    """What is drawn, the sums, the legend and notes, line by line."""
    plan, choice, flows = scene.plan, scene.choice, scene.flows
    chosen = choice.tensors
    members = plan.spec.tensors if chosen is None else [plan.spec.tensors[at] for at in chosen]
    size = format_nbytes(sum(member.nbytes for member in members))
    what = f"{format_count(len(members), 'tensor')}, {size}"
    if len(members) == 1:
        what = f"{plain(members[0].name)}: {format_shape(members[0].shape)} {members[0].dtype}, {size}"
    yield f"Transfers of {what}"
    yield from choice.words
    total = {medium: sum(flow.nbytes for flow in flows.flows if flow.medium == medium) for medium in Medium}
    whole = choice.rank is None and choice.pieces is None and len(members) == len(plan.spec.tensors)
    least = ""
    if whole:
        least = f" (least possible: {format_nbytes(plan.certificate.payload.minimum_network_nbytes)})"
    yield (
        f"strategy {plain(plan.spec.options.strategy)}:"
        f" network {format_nbytes(total[Medium.NETWORK])}{least},"
        f" NVLink {format_nbytes(total[Medium.NVLINK])},"
        f" copies within ranks {format_nbytes(total[Medium.LOCAL])}"
    )
    yield from legend(flows.flows)
    yield from _notes(scene)


def _notes(scene: Scene) -> Iterator[str]:
    """What the texts mean and what is left out."""
    flows, edges = scene.flows, scene.edges
    if scene.crowded:
        yield "At the nodes: transfers, their roles, and their bytes together (1 KiB = 1024 B)."
    elif edges:
        yield "On the lines: number of transfers, their role, and their bytes together (1 KiB = 1024 B)."
        if any(map(scene.upright, edges)):
            yield "Lines that go up or down have no text; the nodes at their ends have the bytes."
    else:
        yield "No bytes go from one node to another. 1 KiB = 1024 B."
    if len({flow.nbytes for flow in edges}) > 1:
        yield "Thicker lines carry more bytes."
    if scene.choice.one_tree:
        yield "slot +n: runs n slots after the round of its unit."
    yield "holds (thick square frame): has bytes before. needs (thin round frame): must have some after."
    if scene.nics:
        yield "NIC (grey): out and in are all bytes that are drawn through it."
    if any(flow.medium == Medium.LOCAL for flow in flows.flows):
        yield "copies: bytes that a rank moves from one of its own buffers to another."
    if not flows.by_rank:
        yield f"Added up by domain: {format_count(flows.pairs, 'line')} between ranks would be too many."
        yield "One tensor, rank, class or tree alone is drawn in full where it fits."
    if flows.idle:
        where = (
            f", among them {format_count(flows.idle_domains, 'whole domain')}" if flows.idle_domains else ""
        )
        yield f"Not drawn: {format_count(len(flows.idle), 'rank')} without transfers{where}."
    yield from scene.choice.hints
