"""Hop diagrams as data: what is behind the edges of the picture, and diagrams of single tensors to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.hops.flows import FlowGraph, Place
from reshard_planner.render.hops.scene import Scene, set_scene
from reshard_planner.render.report.edges import Edge, EdgeTensors

MAX_GRAPHS = 256
"""Most diagrams of single tensors, those of the largest first; tensors that move alike share one."""

MAX_GRAPH_WORK = 2**23
"""Most rows of routes and of the schedule that are looked through for all of them, in about a second."""

MAX_EDGE_TENSORS = 5
"""Tensors that are named as those with most bytes over an edge."""


@dataclass(frozen=True, slots=True)
class TensorGraphs:
    """Hop diagrams of single tensors.

    Attributes:
        graphs: the diagrams in plain JSON types.
        graph_of: diagram of each tensor of the spec, -1 for none.
    """

    graphs: tuple[dict[str, Any], ...]
    graph_of: tuple[int, ...]


def picture_edges(scene: Scene) -> tuple[Edge, ...]:
    """The edges of a picture, and what stays within its nodes."""
    places = scene.flows.places
    return tuple(
        Edge(places[flow.src].ranks, places[flow.dst].ranks, flow.medium, flow.role)
        for flow in scene.flows.flows
    )


def picture_data(scene: Scene, tensors: EdgeTensors, row_of: Mapping[int, int]) -> dict[str, Any]:
    """What is behind the nodes and lines of a picture, by the ids that these have in it.

    Args:
        scene: what the picture shows.
        tensors: bytes of each tensor over each of :func:`picture_edges`.
        row_of: row in the table of tensors of those that have one, by position in the spec.

    Returns:
        Places as id, name and ranks; the ranks that use each NIC; of every line its id, the same as in
        :func:`graph_data`, and rows of tensors with their bytes, those of most bytes first.
    """
    flows, found = scene.flows, graph_data(scene)
    ids = [scene.id(flow) if flow.src != flow.dst else "" for flow in flows.flows]
    most = [tensors.largest(number, MAX_EDGE_TENSORS) for number in range(len(ids))]
    by_nic: dict[int, list[int]] = {}
    for number, nic in scene.nics.of_place.items():
        by_nic.setdefault(nic, []).append(flows.places[number].ranks[0])
    return found | {
        "ids": [scene.name(number) for number in range(len(flows.places))],
        "nics": {f"nic_{nic}": format_ints(sorted(ranks)) for nic, ranks in sorted(by_nic.items())},
        "lines": ids,
        "most": [[[row_of[at], nbytes] for at, nbytes in largest if at in row_of] for largest in most],
    }


def graph_data(scene: Scene) -> dict[str, Any]:
    """The picture of transfers as places and flows.

    Returns:
        Of each place its name, ranks and column from 0 on, and whether it holds and needs; of each flow the
        places that send and receive, medium and role, transfers and bytes.
    """
    flows = scene.flows
    used = sorted(set(scene.sides))
    return {
        "places": [
            [place_name(flows, place), format_ints(place.ranks), used.index(side), place.holds, place.needs]
            for place, side in zip(flows.places, scene.sides, strict=True)
        ],
        "flows": [
            [flow.src, flow.dst, flow.medium, flow.role, flow.count, flow.nbytes] for flow in flows.flows
        ],
    }


def place_name(flows: FlowGraph, place: Place) -> str:
    """What a place is called: a rank, a domain or several."""
    if flows.by_rank or place.alone:
        return f"rank {place.ranks[0]}"
    return f"domain{'s' * (len(place.domains) > 1)} {format_ints(place.domains)}"


def tensor_graphs(plan: Plan, tensors: Sequence[int]) -> TensorGraphs:
    """Hop diagrams of single tensors: one for all that are of one group and move alike.

    Args:
        plan: the plan.
        tensors: positions in the spec of those that should have one, the most important first.
    """
    graph_of = [-1] * len(plan.spec.tensors)
    graphs: list[dict[str, Any]] = []
    numbers: dict[tuple[object, ...], int] = {}
    work = max(1, len(plan.routes) + len(plan.schedule))
    most = min(MAX_GRAPHS, max(1, MAX_GRAPH_WORK // work))
    for tensor, moves in zip(tensors, _moves_alike(plan, tensors), strict=True):
        if moves not in numbers:
            if len(graphs) == most:
                continue
            numbers[moves] = len(graphs)
            graphs.append(graph_data(set_scene(plan, Choice((tensor,)))))
        graph_of[tensor] = numbers[moves]
    return TensorGraphs(tuple(graphs), tuple(graph_of))


def _moves_alike(plan: Plan, tensors: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """Of each tensor what those that move alike share: group, bits, and how much of which parts moves."""
    schedule = plan.schedule
    order = np.lexsort((schedule.part, schedule.tensor))
    tensor, part = schedule.tensor[order].astype(np.int64), schedule.part[order]
    new = (np.diff(tensor, prepend=-1) != 0) | (np.diff(part, prepend=-1) != 0)
    first = np.flatnonzero(new)
    chunks = np.diff(np.append(first, len(order)))
    share = chunks / np.maximum(1, schedule.n_chunks[order][first])  # less than 1 where chunks are left out
    bounds = np.searchsorted(tensor[first], np.arange(len(plan.spec.tensors) + 1))
    for at in tensors:
        mine = slice(bounds[at], bounds[at + 1])
        moves = part[first[mine]].tobytes(), share[mine].tobytes()
        yield int(plan.groups.group_of[at]), plan.spec.tensors[at].bits, *moves
