"""What the picture of transfers shows, and where: senders left, receivers right, their NICs in between."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.hops.flows import Flow, Flows, find_flows
from reshard_planner.render.hops.nics import Nics, find_nics

MAX_TEXTS = 24
"""Edges above which their texts would hide one another: sums at the nodes and tooltips replace them."""

LEFT, MIDDLE, RIGHT = 0, 2, 5
"""Columns of what only sends, of what does both, and of what only receives.

NICs have the columns between: next to the right of the first two, next to the left of the last.
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture of transfers before it is written down.

    Attributes:
        plan: the plan.
        choice: what of it is drawn.
        flows: the places, and what moves between them.
        edges: the flows from one place to another.
        nics: the NICs that are drawn.
        columns: column of each node by its name, from the left, in order of places; empty where nodes stand
            as their edges have it.
        order: where each node comes in the direction that edges are drawn in, by its name.
        crowded: whether edges are too many for texts.
    """

    plan: Plan
    choice: Choice
    flows: Flows
    edges: tuple[Flow, ...]
    nics: Nics
    columns: dict[str, int]
    order: dict[str, tuple[int, int]]
    crowded: bool

    def name(self, number: int) -> str:
        """Name of a place's node; joined domains are named by the first of them."""
        return name_of(self.flows, number)

    def ends(self, flow: Flow) -> tuple[str, str]:
        """Nodes that a flow joins."""
        return self.nics.ends(flow, self.name(flow.src), self.name(flow.dst))

    def upright(self, flow: Flow) -> bool:
        """Whether a flow joins nodes of one column, where texts of edges have no room."""
        tail, head = self.ends(flow)
        return bool(self.columns) and self.columns[tail] == self.columns[head]


def set_scene(plan: Plan, choice: Choice) -> Scene:
    """Find what to draw of a plan, and where."""
    flows = find_flows(plan, choice)
    edges = tuple(flow for flow in flows.flows if flow.src != flow.dst)
    crowded = len(edges) > MAX_TEXTS
    nics = Nics() if crowded else find_nics(plan, flows)
    columns = {} if choice.one_tree and not crowded else _columns(flows, nics)
    # graphviz turns the order within a column around where there are clusters
    listed = reversed(columns.items()) if flows.by_rank else columns.items()
    order = {name: (column, at) for at, (name, column) in enumerate(listed)}
    return Scene(plan, choice, flows, edges, nics, columns, order, crowded)


def name_of(flows: Flows, number: int) -> str:
    """Name of a place's node."""
    place = flows.places[number]
    return f"rank_{place.ranks[0]}" if flows.by_rank or place.alone else f"domain_{place.domains[0]}"


def _columns(flows: Flows, nics: Nics) -> dict[str, int]:
    """Column of each node, all of a domain on the same side."""
    sides = _sides(flows)
    columns: dict[str, int] = {}
    for number, place in enumerate(flows.places):
        side = sides[place.domains[0]]
        columns[name_of(flows, number)] = side
        if number in nics.of_place:
            columns[f"nic_{nics.of_place[number]}"] = side - 1 if side == RIGHT else side + 1
    return columns


def _sides(flows: Flows) -> dict[int, int]:
    """Side of each domain, by what its places hold and need."""
    holds: dict[int, bool] = {}
    needs: dict[int, bool] = {}
    for place in flows.places:
        domain = place.domains[0]
        holds[domain] = holds.get(domain, False) or place.holds
        needs[domain] = needs.get(domain, False) or place.needs
    sides = {
        domain: MIDDLE if held and needs[domain] else LEFT if held else RIGHT
        for domain, held in holds.items()
    }
    if len(sides) > 1 and set(sides.values()) == {MIDDLE}:
        # all of them do both: half of them stand on either side, so that lines have somewhere to go
        ordered = sorted(sides)
        sides = {domain: LEFT if at < len(ordered) / 2 else RIGHT for at, domain in enumerate(ordered)}
    return sides
