"""A picture of boxes, frames and lines whose places are known, and its DOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import graphviz

from reshard_planner.render.dot import FAINT, INK, VERMILLION, dot_text, new_graph
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.sheet import Sheet
from reshard_planner.render.sheets.widths import block_size

FONT, TITLE_FONT, HEADING_FONT = 10.0, 11.0, 12.0
"""Sizes of fonts in points."""

MARGIN = (7.0, 4.0)
"""Room around the text of a node to the sides, and above and below, in points."""

GAP, KEY_GAP = 12.0, 9.0
"""Room between heading, legend and picture, and between lines of the legend, in points."""

FILLS = {"gpu": "#FFFFFF", "nic": "#DCE4EC", "hosts": "#FFFFFF", "switch": "#F5E6C8", "pod": "#F5E6C8"}
"""Colours of nodes by class; shapes and texts say the same."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node before it has its place.

    Attributes:
        name: of the node, which is its ``id`` too.
        kind: its class.
        lines: its text.
        tooltip: lines of it.
        marked: whether it is less than its like, or contradicts itself.
        assumed: whether what it says was taken without a source.
        off: whether it is not used.
        frame: name of the frame in which it stands.
        attributes: for programs.
    """

    name: str
    kind: str
    lines: tuple[str, ...]
    tooltip: tuple[str, ...] = ()
    marked: bool = False
    assumed: bool = False
    off: bool = False
    frame: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points."""
        width, height = block_size(self.lines, FONT)
        return width + 2 * MARGIN[0], height + 2 * MARGIN[1]


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around nodes and other frames.

    Attributes:
        name: of the frame, which is its ``id`` too.
        kind: its class.
        title: one line.
        box: its place.
        parent: name of the frame in which it stands.
        assumed: whether what it says was taken without a source.
    """

    name: str
    kind: str
    title: str
    box: Rectangle
    parent: str | None = None
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """What joins two nodes.

    Attributes:
        tail: the lower one: a GPU, a NIC or a switch.
        head: what it reaches: a NIC or a switch.
        kind: its class.
        tooltip: lines of it.
        assumed: whether it was taken without a source.
        bytes_per_s: capacity per direction, where it is known.
    """

    tail: str
    head: str
    kind: str
    tooltip: tuple[str, ...] = ()
    assumed: bool = False
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything with its place.

    Attributes:
        nodes: with their boxes.
        frames: outer ones before those inside them.
        lines: between nodes.
    """

    nodes: tuple[tuple[Node, Rectangle], ...]
    frames: tuple[Frame, ...]
    lines: tuple[Line, ...]

    def size(self) -> tuple[float, float]:
        """The right and the lower end in points."""
        boxes = [*(box for _, box in self.nodes), *(frame.box for frame in self.frames)]
        return max((box.right for box in boxes), default=0.0), max((box.bottom for box in boxes), default=0.0)


def picture_dot(picture: Picture, heading: Sequence[str], name: str) -> str:
    """The picture below its heading and the legend of what occurs in it, as DOT without HTML-like labels."""
    key = _key(picture)
    texts = [(f"heading_{at}", HEADING_FONT if not at else FONT, line) for at, line in enumerate(heading)]
    above = sum(block_size([text], font)[1] for _, font, text in texts) + GAP
    key_top = above
    above += sum(node.size[1] + KEY_GAP for node, _ in key) + GAP
    wide = max(
        [
            picture.size()[0],
            *(block_size([text], font)[0] for _, font, text in texts),
            *(_SAMPLE + block_size([text], FONT)[0] for _, text in key),
        ]
    )
    sheet = Sheet(wide, above + picture.size()[1])
    graph = new_graph("cluster", layout="nop2", bb=sheet.bounds, tooltip=dot_text(name))
    top = 0.0
    for node_name, font, text in texts:
        top = _add_text(graph, sheet, node_name, "heading", text, font, (0.0, top))
    for at, (node, text) in enumerate(key):
        width, height = node.size
        _add_node(graph, sheet, node, Rectangle.between(0, width, key_top, key_top + height))
        _add_text(graph, sheet, f"key_{at}_text", "key", text, FONT, (_SAMPLE, key_top + MARGIN[1]))
        key_top += height + KEY_GAP
    _add_frame(graph, sheet, picture, None, above)
    places = {node.name: box.moved(0, above) for node, box in picture.nodes}
    for line in picture.lines:
        _add_line(graph, sheet, line, places)
    return str(graph.source)


_SAMPLE = 74.0
"""Distance of texts of the legend from the left, in points."""


def _key(picture: Picture) -> list[tuple[Node, str]]:
    """Samples of the looks that occur, with what they stand for."""
    nodes = [node for node, _ in picture.nodes]
    looks = (
        (
            "less",
            any(node.marked for node in nodes),
            "double frame: less than its like, or a limit of transfers; its text says what",
        ),
        (
            "off",
            any(node.off for node in nodes),
            "dotted: not used, as its port is down, it is disabled, or no GPU uses it",
        ),
        (
            "assumed",
            any(node.assumed for node in nodes)
            or any(frame.assumed for frame in picture.frames)
            or any(line.assumed for line in picture.lines),
            "dashed: assumed, as no source says it",
        ),
    )
    return [
        (
            Node(f"key_{name}", "key", (name,), (), name == "less", name == "assumed", name == "off"),
            text,
        )
        for name, occurs, text in looks
        if occurs
    ]


def _add_text(
    graph: graphviz.Digraph,
    sheet: Sheet,
    name: str,
    kind: str,
    text: str,
    font: float,
    corner: tuple[float, float],
) -> float:
    """Add one line of text at its upper left corner; returns where it ends below."""
    width, height = block_size([text], font)
    left, top = corner
    graph.node(
        name,
        label=dot_text(text),
        shape="plaintext",
        fontsize=f"{font:g}",
        id=name,
        **sheet.node(Rectangle.between(left, left + width, top, top + height)),
        **{"class": kind},
    )
    return top + height


def _add_frame(
    graph: graphviz.Digraph, sheet: Sheet, picture: Picture, name: str | None, above: float
) -> None:
    """Add what stands in a frame: frames, then nodes."""
    for frame in picture.frames:
        if frame.parent != name:
            continue
        with graph.subgraph(name=f"cluster_{frame.name}") as inside:
            inside.attr(
                label=dot_text(frame.title),
                fontsize=f"{TITLE_FONT:g}",
                id=frame.name,
                style="rounded,filled,dashed" if frame.assumed else "rounded,filled",
                fillcolor="#F4F4F4" if frame.kind != "domain" else "#E3F1EC",
                color=FAINT,
                tooltip=dot_text(frame.title),
                **sheet.frame(frame.box.moved(0, above), block_size([frame.title], TITLE_FONT)),
                **{"class": frame.kind},
            )
            _add_frame(inside, sheet, picture, frame.name, above)
    for node, box in picture.nodes:
        if node.frame == name:
            _add_node(graph, sheet, node, box.moved(0, above))


def _add_node(graph: graphviz.Digraph, sheet: Sheet, node: Node, box: Rectangle) -> None:
    style = "filled"
    if node.off:
        style += ",dotted"
    elif node.assumed:
        style += ",dashed"
    graph.node(
        node.name,
        label=dot_text(*node.lines),
        shape="box",
        peripheries="2" if node.marked else "1",
        style=style,
        fontsize=f"{FONT:g}",
        fontcolor=FAINT if node.off else INK,
        color=VERMILLION if node.marked else FAINT,
        fillcolor=FILLS.get(node.kind, "#FFFFFF"),
        tooltip=dot_text(*(node.tooltip or node.lines)),
        id=node.name,
        **sheet.node(box),
        **{**{key: dot_text(value) for key, value in node.attributes.items()}, "class": node.kind},
    )


def _add_line(graph: graphviz.Digraph, sheet: Sheet, line: Line, places: Mapping[str, Rectangle]) -> None:
    tail, head = places[line.tail], places[line.head]
    start, end = (tail.right, tail.y), (head.left, head.y)
    bend = (end[0] - start[0]) / 2
    if bend <= 0:  # both in one column
        end, bend = (head.right, head.y), 30.0
        curve = [start, (start[0] + bend, start[1]), (end[0] + bend, end[1]), end]
    else:
        curve = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    rate = {} if line.bytes_per_s is None else {"bytes_per_s": str(line.bytes_per_s)}
    graph.edge(
        line.tail,
        line.head,
        dir="none",
        pos=sheet.edge(curve),
        style="dashed" if line.assumed else "solid",
        tooltip=dot_text(*line.tooltip),
        id=f"{line.tail}_to_{line.head}",
        **{**rate, "class": line.kind},
    )
