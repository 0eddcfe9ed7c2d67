"""What the picture of transfers shows, and in which columns: senders left, receivers right, NICs in between.

Texts of lines have columns of their own: graphviz would find room for them where other lines cross them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.hops.flows import Flow, FlowGraph, Stroke, find_flows
from reshard_planner.render.hops.lines import kind_of
from reshard_planner.render.hops.nics import NicNodes, find_nics
from reshard_planner.transfer import Medium


class Column(IntEnum):
    """Columns from left to right. A side is named by the column of its ranks, or of its domains."""

    LEFT_TEXTS = 0
    LEFT = 1
    LEFT_NICS = 2
    MIDDLE_TEXTS = 3
    MIDDLE = 4
    MIDDLE_NICS = 5
    TEXTS = 6
    RIGHT_NICS = 7
    RIGHT = 8
    RIGHT_TEXTS = 9


NICS = {
    Column.LEFT: Column.LEFT_NICS,
    Column.MIDDLE: Column.MIDDLE_NICS,
    Column.RIGHT: Column.RIGHT_NICS,
}
"""Column of the NICs of each side: towards the texts of lines between domains."""

TEXTS_BESIDE = {
    Column.LEFT: Column.LEFT_TEXTS,
    Column.MIDDLE: Column.MIDDLE_TEXTS,
    Column.RIGHT: Column.RIGHT_TEXTS,
}
"""Column of the texts of lines that stay on a side: away from the others."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture of transfers before it is laid out.

    Attributes:
        plan: the plan.
        choice: what of it is drawn.
        flows: the places, and what moves between them.
        nics: the NICs that are drawn.
        sides: side of each place.
    """

    plan: Plan
    choice: Choice
    flows: FlowGraph
    nics: NicNodes
    sides: tuple[Column, ...]

    def name(self, number: int) -> str:
        """Name of a place's node; joined domains are named by the first of them."""
        place = self.flows.places[number]
        by_rank = self.flows.by_rank or place.alone
        return f"rank_{place.ranks[0]}" if by_rank else f"domain_{place.domains[0]}"

    def id(self, flow: Flow) -> str:
        """What a flow is called in the picture."""
        return f"{self.name(flow.src)}_to_{self.name(flow.dst)}_{kind_of(flow).replace(' ', '_')}"

    def stroke_id(self, stroke: Stroke) -> str:
        """What a line is called in the picture: as its first flow, or by its sender alone."""
        if not stroke.to_many:
            return self.id(stroke.first)
        kind = kind_of(stroke.first).replace(" ", "_")
        return f"{self.name(stroke.first.src)}_to_others_{kind}"

    def text(self, stroke: Stroke) -> str:
        """Name of the node of a line's text."""
        return f"{self.stroke_id(stroke)}_text"

    def stroke_ends(self, stroke: Stroke) -> tuple[tuple[str, int], ...]:
        """Nodes that a line joins with its text, each with its place: one where receivers are only named."""
        flow = stroke.first
        src, dst = self.ends(flow)
        return ((src, flow.src),) if stroke.to_many else ((src, flow.src), (dst, flow.dst))

    def ends(self, flow: Flow) -> tuple[str, str]:
        """Nodes that a flow joins."""
        return self.nics.ends(flow, self.name(flow.src), self.name(flow.dst))

    def inside(self, flow: Flow) -> int | None:
        """Domain that a flow stays in, if its text stands in the frame of that domain."""
        src, dst = (self.flows.places[number].domains[0] for number in (flow.src, flow.dst))
        ranks = self.ends(flow) == (self.name(flow.src), self.name(flow.dst))
        near = ranks and (flow.medium != Medium.NETWORK or bool(self.nics))
        return src if self.flows.by_rank and src == dst and near else None

    def text_column(self, flow: Flow) -> Column:
        """Column of a flow's text."""
        src, dst = self.sides[flow.src], self.sides[flow.dst]
        beside = src == dst and (not self.flows.by_rank or self.inside(flow) is not None)
        return TEXTS_BESIDE[src] if beside else Column.TEXTS


def set_scene(plan: Plan, choice: Choice) -> Scene:
    """Find what to draw of a plan, and on which sides."""
    flows = find_flows(plan, choice)
    sides = _sides(flows)
    return Scene(
        plan,
        choice,
        flows,
        find_nics(plan, flows),
        tuple(sides[place.domains[0]] for place in flows.places),
    )


def _sides(flows: FlowGraph) -> dict[int, Column]:
    """Side of each domain, by what its places hold and need; domains that do both are in the middle."""
    holds: dict[int, bool] = {}
    needs: dict[int, bool] = {}
    for place in flows.places:
        domain = place.domains[0]
        holds[domain] = holds.get(domain, False) or place.holds
        needs[domain] = needs.get(domain, False) or place.needs
    sides = {
        domain: Column.MIDDLE if held and needs[domain] else Column.LEFT if held else Column.RIGHT
        for domain, held in sorted(holds.items())
    }
    used = set(sides.values())
    if used == {Column.MIDDLE}:
        # all of them do both: half of them stand on either side, so that lines have somewhere to go
        return {
            domain: Column.LEFT if at < len(sides) / 2 else Column.RIGHT for at, domain in enumerate(sides)
        }
    free = next((side for side in (Column.RIGHT, Column.LEFT) if side not in used), Column.MIDDLE)
    return {domain: free if side == Column.MIDDLE else side for domain, side in sides.items()}
