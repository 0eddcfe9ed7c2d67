"""How transfers are drawn: one line for each medium and role, told apart without its colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.render.dot import BLUE, FAINT, GREEN, PURPLE, VERMILLION
from reshard_planner.render.hops.flows import Flow, Stroke
from reshard_planner.render.kinds import kind_name
from reshard_planner.render.text import format_count, format_nbytes
from reshard_planner.transfer import Medium, Role


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
        "inject", "over the network, a rank sends what it holds", "solid", BLUE, "#00507D"
    ),
    (Medium.NETWORK, Role.RELAY): Line(
        "relay", "over the network, a rank sends on what it received", "dashed", VERMILLION, "#954200", "vee"
    ),
    (Medium.NVLINK, Role.FANOUT): Line(
        "fan-out",
        "over NVLink, to a rank of the domain that needs the bytes",
        "dotted",
        GREEN,
        "#006B4F",
        "empty",
    ),
    (Medium.NVLINK, Role.HANDOFF): Line(
        "handoff",
        "over NVLink, to or from a rank that lends its NIC",
        "solid",
        PURPLE,
        "#8A3D6A",
        double=True,
    ),
}
"""Lines by medium and role."""

PORT = Line("rank and NIC", "the NIC that bytes of a rank go through", "solid", FAINT, "#5F5F5F", "open")
"""Lines between ranks and NICs."""


def line_of(flow: Flow) -> Line:
    """How a flow is drawn; a pair of medium and role that no right plan has is drawn all the same."""
    known = LINES.get((flow.medium, flow.role))
    if known is not None:
        return known
    black = "#000000"
    return Line(kind_of(flow), "no transfer of a right plan", "bold", black, black, "box")


def kind_of(flow: Flow) -> str:
    """Medium and role in words, or as numbers where a broken plan has unknown ones."""
    return kind_name(flow.medium, flow.role)


def amount_of(flow: Flow, noun: str = "") -> str:
    """Number of transfers, their role, what they are called if that is to be said, and their bytes.

    >>> amount_of(Flow(0, 1, Medium.NETWORK, Role.INJECT, 2, 65536, 0))
    '2 inject, 64 KiB'
    """
    called = f" {noun}{'s' * (flow.count != 1)}" if noun else ""
    return f"{flow.count:,} {line_of(flow).name}{called}, {format_nbytes(flow.nbytes)}"


def between_ranks(stroke: Stroke, src: int, receivers: str) -> str:
    """Sender, receivers, role and bytes of a line between ranks: ``4 → 6: inject 32 MiB``."""
    sizes = [flow.nbytes for flow in stroke.every]
    low, high = format_nbytes(min(sizes)), format_nbytes(max(sizes))
    amount, arrow = format_nbytes(stroke.first.nbytes), "→"
    if stroke.to_many:
        amount = f"{low} each" if low == high else f"{low} to {high} each"
    elif stroke.back is not None:
        arrow = "↔"
        amount += " each way" if low == high else f", back {format_nbytes(stroke.back.nbytes)}"
    return f"{src} {arrow} {receivers}: {line_of(stroke.first).name} {amount}"


def describe(flow: Flow) -> str:
    """A flow in words, with its exact bytes."""
    return f"{kind_of(flow)}: {format_count(flow.count, 'transfer')}, {flow.nbytes:,} bytes"


def lines_of(strokes: Sequence[Stroke]) -> list[Line]:
    """The lines that occur, each once, in the order of :data:`LINES`."""
    found = [line_of(stroke.first) for stroke in strokes]
    return [line for line in dict.fromkeys([*LINES.values(), *found]) if line in found]


def class_of(line: Line) -> str:
    """Class of what is drawn like a line: its medium and role, or ``port``."""
    if line is PORT:
        return "port"
    return next((kind_name(*pair) for pair, known in LINES.items() if known == line), line.name)


def line_look(line: Line) -> dict[str, str]:
    """Attributes of edges that are drawn with a line."""
    return {
        "style": line.style,
        "color": f"{line.colour}:white:{line.colour}" if line.double else line.colour,
        "arrowhead": line.arrow,
        "arrowsize": "0.8",
    }
