"""How transfers are drawn: one line for each medium and role, told apart without its colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard_planner.render.dot import BLUE, GREEN, PURPLE, VERMILLION
from reshard_planner.render.hops.flows import Flow
from reshard_planner.render.text import format_count, format_nbytes
from reshard_planner.transfer import Medium, Role


@dataclass(frozen=True, slots=True)
class Line:
    """How flows of one medium and role are drawn.

    Attributes:
        name: what their text says.
        meaning: what the legend says.
        sample: what the line looks like, in characters.
        look: the same in words.
        style: graphviz edge style.
        colour: of the line.
        ink: darker shade of it, for text.
        arrow: graphviz arrow shape.
        double: whether two lines run side by side.
    """

    name: str
    meaning: str
    sample: str
    look: str
    style: str
    colour: str
    ink: str
    arrow: str = "normal"
    double: bool = False


LINES: dict[tuple[int, int], Line] = {
    (Medium.NETWORK, Role.INJECT): Line(
        "inject",
        "network: a rank that holds the bytes sends them from its NIC",
        "\N{HORIZONTAL BAR}\N{HORIZONTAL BAR}\N{BLACK RIGHT-POINTING TRIANGLE}",
        "solid, blue",
        "solid",
        BLUE,
        "#00507D",
    ),
    (Medium.NETWORK, Role.RELAY): Line(
        "relay",
        "network: a rank forwards bytes that it received",
        "- - >",
        "dashed, orange",
        "dashed",
        VERMILLION,
        "#954200",
        "vee",
    ),
    (Medium.NVLINK, Role.FANOUT): Line(
        "fan-out",
        "NVLink: between ranks of one domain",
        "\N{MIDDLE DOT}\N{MIDDLE DOT}\N{MIDDLE DOT}\N{MIDDLE DOT}\N{WHITE RIGHT-POINTING TRIANGLE}",
        "dotted, green",
        "dotted",
        GREEN,
        "#006B4F",
        "empty",
    ),
    (Medium.NVLINK, Role.HANDOFF): Line(
        "handoff",
        "NVLink: to or from a rank that lends its NIC",
        "==\N{BLACK RIGHT-POINTING TRIANGLE}",
        "double, purple",
        "solid",
        PURPLE,
        "#8A3D6A",
        double=True,
    ),
}
"""Lines by medium and role."""


def line_of(flow: Flow) -> Line:
    """How a flow is drawn; a pair of medium and role that no right plan has is drawn all the same."""
    known = LINES.get((flow.medium, flow.role))
    if known is not None:
        return known
    name, black = kind_of(flow), "#000000"
    return Line(name, "no transfer of a right plan", "##", "bold, black", "bold", black, black, "box")


def kind_of(flow: Flow) -> str:
    """Medium and role in words, or as numbers where a broken plan has unknown ones."""
    medium = Medium(flow.medium).label if flow.medium in set(Medium) else f"medium{flow.medium}"
    role = Role(flow.role).label if flow.role in set(Role) else f"role{flow.role}"
    return f"{medium} {role}"


def amount_of(flows: Sequence[Flow]) -> str:
    """Number of transfers, their role and their bytes: ``2 inject, 64 KiB``."""
    names = "/".join(dict.fromkeys(line_of(flow).name for flow in flows))
    count = sum(flow.count for flow in flows)
    return f"{count:,} {names}, {format_nbytes(sum(flow.nbytes for flow in flows))}"


def describe(flow: Flow) -> str:
    """A flow in words, with its exact bytes."""
    return f"{kind_of(flow)}: {format_count(flow.count, 'transfer')}, {flow.nbytes:,} bytes"


def legend(flows: Sequence[Flow]) -> Iterator[str]:
    """One line of text for each kind of line that occurs."""
    lines = [line_of(flow) for flow in flows if flow.medium != Medium.LOCAL]
    for line in dict.fromkeys([*LINES.values(), *lines]):
        if line in lines:
            yield f"{line.sample}  {line.name} ({line.look}): {line.meaning}"
