"""The picture of a plan's transfers, as graphviz DOT.

Domains are clusters with a node per rank and, where there is room, one per NIC. What only sends stands to
the left, what only receives to the right. A line stands for all transfers of one medium and role from one
place to another; what that is shows in its text and its look, not in its colour alone.

Every node has its place and every line its way (:mod:`reshard_planner.render.hops.layout`); graphviz paints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import graphviz

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.render.dot import DOT_FONT, FAINT, dot_text, new_graph
from reshard_planner.render.hops.choice import choose
from reshard_planner.render.hops.dark import PICTURE, stylesheet
from reshard_planner.render.hops.flows import Flow, Stroke
from reshard_planner.render.hops.heading import heading
from reshard_planner.render.hops.layout import Layout, arrange
from reshard_planner.render.hops.legend import ARROW, add_legend, legend_size
from reshard_planner.render.hops.lines import PORT, kind_of, line_look, line_of, lines_of
from reshard_planner.render.hops.nodes import Node, find_nodes, frame_title, stroke_tooltip
from reshard_planner.render.hops.scene import Scene, set_scene
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.sheet import Sheet
from reshard_planner.render.sheets.widths import block_size
from reshard_planner.transfer import Medium

MIN_PENWIDTH, MAX_PENWIDTH = 0.9, 2.2
"""Width of a line of hardly any bytes and of that of most bytes, in points."""

PORT_ARROW = 5.0
"""Length of the arrows between ranks and NICs, in points."""

HEADING_FONTS, TITLE_FONT = (14.0, 11.0), 12.0
"""Sizes of the fonts of the first line of the heading, of its others, and of titles of domains, in points."""

BOLD = 1.07
"""How many times as wide a line is in bold letters."""

GAP = 8.0
"""Room between heading, legend and picture, in points."""


def transfers_dot(
    plan: Plan,
    tensor: str | None = None,
    *,
    rank: int | None = None,
    klass: int | None = None,
    tree: int | None = None,
) -> str:
    """Draw the transfers of a plan, or some of them.

    Transfers are added up over pieces, tensors and units. Both ways between two ranks of a domain have one
    line, and so has a rank that fans out to many as others of its domain do. Of many lines those of hardly
    any bytes are left out. Where still more than :data:`~reshard_planner.render.hops.flows.MAX_EDGES` lines
    are left, ranks are added up by domain, and domains that are alike are joined. Every line is two edges
    with its text as a node between them; a fan-out to many is one edge to its text. Nodes and edges carry a
    stable ``id``, a ``class``, a tooltip and, for programs, attributes with exact sums: ``transfers`` and
    ``nbytes`` on the edges that lead to receivers, or to the text that names them, and ``local_nbytes``,
    ``nvlink_nbytes`` and ``network_nbytes`` on nodes for what stays within them, and on the graph for what
    is left out.

    Args:
        plan: the plan.
        tensor: name of the one tensor to draw; all of them when None.
        rank: draw only what this rank sends or receives.
        klass: draw only bytes of this class of the tensor, numbered from 0 as by
            :func:`reshard_planner.atoms.find_atoms`.
        tree: draw only the tree that carries the piece of this number, with slots.

    Returns:
        DOT text without HTML-like labels, the same for the same plan.

    Raises:
        InputError: if the plan has no such tensor, rank, class or tree, a class or tree is asked for without
            saying of which tensor, or the rank takes no part in the tree.
    """
    scene = set_scene(plan, choose(plan, tensor, rank=rank, klass=klass, tree=tree))
    nodes = find_nodes(scene)
    lines, kinds = list(heading(scene)), lines_of(scene.flows.strokes)
    if scene.nics:
        kinds.append(PORT)
    head, key = _heading_size(lines), legend_size(kinds)
    above = head[1] + GAP + (key[1] + GAP if kinds else 0.0)
    titles = {
        place.domains[0]: block_size([frame_title(scene, place.domains[0])], TITLE_FONT)[0]
        for place in scene.flows.places
    }
    sizes = {name: node.size for name, node in nodes.items()}
    layout = arrange(scene, sizes, titles).below(above)
    around = layout.around()
    sheet = Sheet(max(head[0], key[0], around.right), max(above, around.bottom))
    graph = new_graph(
        "transfers",
        layout="nop2",
        bb=sheet.bounds,
        tooltip=dot_text(f"plan {plan.digest}"),
        stylesheet=stylesheet(),
        **_left_out(scene.flows.left_out),
        **{"class": PICTURE},
    )
    _add_heading(graph, sheet, lines)
    add_legend(graph, sheet, kinds, head[1] + GAP)
    _add_nodes(graph, scene, sheet, nodes, layout)
    _add_ports(graph, scene, sheet, layout)
    for stroke in scene.flows.strokes:
        _add_line(graph, scene, sheet, layout, stroke)
    return str(graph.source)


def _left_out(flows: Sequence[Flow]) -> dict[str, str]:
    """Bytes that are not drawn, by medium, as attributes."""
    sums = {medium: sum(flow.nbytes for flow in flows if flow.medium == medium) for medium in Medium}
    return {f"{medium.label}_nbytes": str(total) for medium, total in sums.items() if total}


def _line_size(at: int, line: str) -> tuple[float, float]:
    """Width and height of a line of the heading, of which the first is bold."""
    width, height = block_size([line], HEADING_FONTS[min(at, 1)])
    return width * (1 if at else BOLD), height


def _heading_size(lines: Sequence[str]) -> tuple[float, float]:
    sizes = [_line_size(at, line) for at, line in enumerate(lines)]
    return max(width for width, _ in sizes), sum(height for _, height in sizes)


def _add_heading(graph: graphviz.Digraph, sheet: Sheet, lines: Sequence[str]) -> None:
    """Add the heading line by line, as graphviz may take them for wider than they are."""
    top = 0.0
    for at, line in enumerate(lines):
        width, height = _line_size(at, line)
        graph.node(
            f"heading_{at}",
            label=dot_text(line),
            shape="plaintext",
            fontsize=f"{HEADING_FONTS[min(at, 1)]:g}",
            id=f"heading_{at}",
            **({} if at else {"fontname": f"{DOT_FONT}-Bold"}),
            **sheet.node(Rectangle.between(0, width, top, top + height)),
            **{"class": "heading"},
        )
        top += height


def _add_nodes(
    graph: graphviz.Digraph, scene: Scene, sheet: Sheet, nodes: Mapping[str, Node], layout: Layout
) -> None:
    """Add all nodes, those of a domain in its cluster."""
    for domain, frame in sorted(layout.frames.items()):
        inside = [node for node in nodes.values() if node.domain == domain]
        title = frame_title(scene, domain)
        with graph.subgraph(name=f"cluster_domain_{domain}") as cluster:
            cluster.attr(
                label=dot_text(title),
                fontsize=f"{TITLE_FONT:g}",
                id=f"domain_{domain}",
                style="rounded,filled",
                fillcolor="#F4F4F4",
                color=FAINT,
                tooltip=dot_text(title),
                **sheet.frame(frame, block_size([title], TITLE_FONT)),
                **{"class": "domain"},
            )
            for node in inside:
                _add_node(cluster, sheet, node, layout.boxes[node.name])
    for node in nodes.values():
        if node.domain is None:
            _add_node(graph, sheet, node, layout.boxes[node.name])


def _add_node(graph: graphviz.Digraph, sheet: Sheet, node: Node, box: Rectangle) -> None:
    graph.node(
        node.name,
        label=dot_text(*node.lines),
        fontsize=f"{node.font:g}",
        id=node.name,
        **sheet.node(box),
        **node.attributes,
    )


def _add_ports(graph: graphviz.Digraph, scene: Scene, sheet: Sheet, layout: Layout) -> None:
    """Join ranks with their NICs, with arrows the way that bytes go."""
    nics = scene.nics
    for number, nic in nics.of_place.items():
        rank, port = scene.name(number), f"nic_{nic}"
        out, into = nics.sent[number], nics.received[number]
        curve = layout.curves[rank, port]
        graph.edge(
            rank,
            port,
            dir="both" if out and into else "forward" if out else "back",
            pos=sheet.edge(curve, PORT_ARROW if into else 0.0, PORT_ARROW if out else 0.0),
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


def _add_line(graph: graphviz.Digraph, scene: Scene, sheet: Sheet, layout: Layout, stroke: Stroke) -> None:
    """Add a line: its part from the sender to the text, and the one on to the receiver.

    Both parts lead to receivers where bytes go both ways, and the only one to the text that names many.
    """
    text, first = scene.text(stroke), stroke.first
    look = {
        **line_look(line_of(first)),
        "penwidth": f"{_penwidth(scene, stroke):.1f}",
        "tooltip": stroke_tooltip(scene, stroke),
        "class": kind_of(first),
    }
    ends = [end for end, _ in scene.stroke_ends(stroke)]
    src, dst = ends[0], ends[-1]
    if stroke.to_many:
        curve = sheet.edge(layout.curves[src, text], head=ARROW)
        receivers = format_ints(scene.flows.places[flow.dst].ranks[0] for flow in stroke.flows)
        graph.edge(
            src,
            text,
            id=scene.stroke_id(stroke),
            pos=curve,
            receivers=receivers,
            **_sums(*stroke.flows),
            **look,
        )
        return
    for flow, end in ((stroke.back, src), (first, dst)):
        if flow is None:
            pos = sheet.edge(layout.curves[src, text])
            graph.edge(src, text, dir="none", id=f"{scene.id(first)}_start", pos=pos, **look)
        else:
            pos = sheet.edge(layout.curves[text, end], head=ARROW)
            graph.edge(text, end, id=scene.id(flow), pos=pos, **_sums(flow), **look)


def _sums(*flows: Flow) -> dict[str, str]:
    """Exact sums for programs."""
    return {
        "transfers": str(sum(flow.count for flow in flows)),
        "nbytes": str(sum(flow.nbytes for flow in flows)),
    }


def _penwidth(scene: Scene, stroke: Stroke) -> float:
    """Width of a line, by the most bytes that go to one receiver."""
    most = max(flow.nbytes for each in scene.flows.strokes for flow in each.every) or 1
    part = max(flow.nbytes for flow in stroke.every) / most
    return MIN_PENWIDTH + (MAX_PENWIDTH - MIN_PENWIDTH) * part
